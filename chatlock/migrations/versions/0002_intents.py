"""The table of intents: external effects, beginning with the delivery of replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from alembic.operations import Operations

revision = "0002"
down_revision = "0001"
phase = "pre"

OPEN = "state IN ('pending','leased')"


def upgrade(op: Operations) -> None:
    def text(name: str, *, null: bool = False, default: str | None = None, key: bool = False) -> sa.Column[str]:
        server = None if default is None else sa.text(f"'{default}'")
        return sa.Column(name, sa.Text(), nullable=null, primary_key=key, server_default=server)

    def big(name: str, *, null: bool = False, default: int | None = None, key: bool = False) -> sa.Column[int]:
        server = None if default is None else sa.text(str(default))
        return sa.Column(
            name, sa.BigInteger(), nullable=null, primary_key=key, server_default=server, autoincrement=False
        )

    op.create_table(
        "chatlock_intents",
        text("tenant", key=True),
        text("thread_id", key=True),
        big("incarnation", key=True),
        big("token", key=True),
        text("name", key=True),
        text("agent"),
        text("step_key"),
        text("payload", null=True),
        text("state", default="pending"),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        big("lease_token", default=0),
        big("leased_until", null=True),
        big("not_before", default=0),
        big("expires_at", null=True),
        big("created_at"),
        big("ended_at", null=True),
        text("error", null=True),
        sa.CheckConstraint(
            "state IN ('pending','leased','sent','failed','expired','cancelled')", name="chatlock_intents_state"
        ),
        sa.CheckConstraint("(state = 'leased') = (leased_until IS NOT NULL)", name="chatlock_intents_leased"),
    )
    op.create_index(
        "chatlock_intents_open",
        "chatlock_intents",
        ["tenant", "thread_id", "incarnation", "token"],
        postgresql_where=sa.text(OPEN),
        sqlite_where=sa.text(OPEN),
    )
    op.execute("UPDATE chatlock_meta SET value = 2 WHERE name = 'schema'")
