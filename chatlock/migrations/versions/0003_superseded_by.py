"""Which message took a superseded one's place.

A client of the previous release leaves the column empty and tells `Superseded` without it; it stays admitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from alembic.operations import Operations

revision = "0003"
down_revision = "0002"
phase = "pre"


def upgrade(op: Operations) -> None:
    op.add_column("chatlock_messages", sa.Column("superseded_by", sa.BigInteger(), nullable=True))
    op.execute("UPDATE chatlock_meta SET value = 3 WHERE name = 'schema'")
