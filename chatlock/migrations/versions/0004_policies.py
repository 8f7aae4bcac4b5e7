"""What stopping a turn, asking a human, sharing among tenants and estimating need to remember.

A client of the previous release stays admitted.  It neither asks a turn to stop nor suspends one, and a stop names its
token, so what it leaves in those columns is void at its next claim; on a thread with an open question it runs turns as
under awaiting="run", and the question stays open; interrupts of a message that it answered count against the next one;
a day that it observed has a smaller mean, which is only an estimate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from alembic.operations import Operations

revision = "0004"
down_revision = "0003"
phase = "pre"

ZERO = sa.text("0")


def upgrade(op: Operations) -> None:
    op.add_column("chatlock_threads", sa.Column("cancel_until", sa.BigInteger(), nullable=True))
    op.add_column("chatlock_threads", sa.Column("cancel_queued", sa.Text(), nullable=True))
    op.add_column("chatlock_threads", sa.Column("cancel_upto", sa.BigInteger(), nullable=True))
    op.add_column("chatlock_threads", sa.Column("interrupts", sa.Integer(), nullable=False, server_default=ZERO))
    op.add_column("chatlock_threads", sa.Column("awaiting_rule", sa.Text(), nullable=True))
    op.add_column("chatlock_turns", sa.Column("question", sa.Text(), nullable=True))
    op.add_column("chatlock_windows", sa.Column("total_ms", sa.BigInteger(), nullable=False, server_default=ZERO))
    op.create_index("chatlock_due_by_tenant", "chatlock_due", ["tenant", "priority", "due_at"])
    op.execute("UPDATE chatlock_meta SET value = 4 WHERE name = 'schema'")
