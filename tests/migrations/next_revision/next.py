"""A revision that follows the newest one: with it, a database of today is an old one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from tests.migrations import stages

if TYPE_CHECKING:
    from alembic.operations import Operations

revision = f"{stages.NEXT:04}"
down_revision = f"{stages.NEWEST:04}"
phase = "pre"


def upgrade(op: Operations) -> None:
    op.create_table("chatlock_next", sa.Column("number", sa.Integer(), primary_key=True))
    stages.midway()
    op.execute(f"UPDATE chatlock_meta SET value = {stages.NEXT} WHERE name = 'schema'")
