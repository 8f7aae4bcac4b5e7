"""A revision that follows the newest one: with it, a database of today is an old one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from tests.migrations import stages

if TYPE_CHECKING:
    from alembic.operations import Operations

revision = "0002"
down_revision = "0001"
phase = "pre"


def upgrade(op: Operations) -> None:
    op.create_table("chatlock_next", sa.Column("number", sa.Integer(), primary_key=True))
    stages.midway()
    op.execute("UPDATE chatlock_meta SET value = 2 WHERE name = 'schema'")
