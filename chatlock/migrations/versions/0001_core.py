"""The protocol's tables as first released.  Later revisions change them; this file stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from alembic.operations import Operations

revision = "0001"
down_revision = None
phase = "pre"

FILL = {"fillfactor": 60}


def key(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), primary_key=True, nullable=False)


def number_key(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), primary_key=True, nullable=False, autoincrement=False)


def text(name: str, default: str | None = None, *, null: bool = False) -> sa.Column[Any]:
    server = None if default is None else sa.text(f"'{default}'")
    return sa.Column(name, sa.Text(), nullable=null, server_default=server)


def big(name: str, default: int | None = None, *, null: bool = False) -> sa.Column[Any]:
    server = None if default is None else sa.text(str(default))
    return sa.Column(name, sa.BigInteger(), nullable=null, server_default=server)


def small(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer(), nullable=False, server_default=sa.text("0"))


def check(name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=name)


def upgrade(op: Operations) -> None:
    create_threads(op)
    create_messages(op)
    create_turns(op)
    create_due(op)
    create_side_tables(op)
    create_audit(op)
    create_meta(op)


def create_threads(op: Operations) -> None:
    op.create_table(
        "chatlock_threads",
        key("tenant"),
        key("thread_id"),
        big("incarnation", 1),
        text("agent", "default"),
        text("status", "idle"),
        big("token", 0),
        text("claim_id", null=True),
        text("owner", null=True),
        big("claimed_at", null=True),
        big("expires_at", null=True),
        big("window_ends_at", null=True),
        big("lease_ms", null=True),
        big("beat", 0),
        big("last_seq", 0),
        big("fetched_seq", 0),
        big("done_seq", 0),
        big("holes", 0),
        small("attempts"),
        small("stalls"),
        big("not_before", 0),
        big("quiet_until", 0),
        big("cancel_token", null=True),
        text("awaiting", null=True),
        small("priority"),
        big("created_at", 0),
        check("chatlock_threads_status", "status IN ('idle','running','parked','deleted')"),
        check(
            "chatlock_threads_seqs",
            "done_seq >= 0 AND done_seq <= fetched_seq AND fetched_seq <= last_seq",
        ),
        check("chatlock_threads_claim", "(status = 'running') = (claim_id IS NOT NULL)"),
        check("chatlock_threads_expires", "(status = 'running') = (expires_at IS NOT NULL)"),
        check("chatlock_threads_window", "(status = 'running') = (window_ends_at IS NOT NULL)"),
        check("chatlock_threads_holes", "holes >= 0 AND holes <= last_seq - done_seq"),
        check(
            "chatlock_threads_counts",
            "token >= 0 AND incarnation >= 1 AND attempts >= 0 AND stalls >= 0",
        ),
        postgresql_with=FILL,
    )


def create_messages(op: Operations) -> None:
    op.create_table(
        "chatlock_messages",
        key("tenant"),
        key("thread_id"),
        number_key("incarnation"),
        number_key("seq"),
        text("message_id"),
        text("payload", null=True),
        text("payload_hash"),
        text("disposition", "pending"),
        big("turn_token", null=True),
        text("policy", "enqueue"),
        big("received_at"),
        big("expire_ms", null=True),
        text("redrive_of", null=True),
        text("trace", null=True),
        sa.UniqueConstraint("tenant", "message_id", "thread_id", "incarnation", name="chatlock_messages_once"),
        check(
            "chatlock_messages_disposition",
            "disposition IN ('pending','answered','superseded','cancelled','expired','dead','deleted')",
        ),
        check("chatlock_messages_pending", "disposition <> 'pending' OR turn_token IS NULL"),
        check(
            "chatlock_messages_turn",
            "disposition NOT IN ('answered','dead') OR turn_token IS NOT NULL",
        ),
        postgresql_with=FILL,
    )


def create_turns(op: Operations) -> None:
    op.create_table(
        "chatlock_turns",
        key("tenant"),
        key("thread_id"),
        number_key("incarnation"),
        number_key("token"),
        text("claim_id"),
        text("owner", null=True),
        text("agent", "default"),
        big("from_seq"),
        big("to_seq", null=True),
        text("state", "running"),
        text("reply", null=True),
        text("error", null=True),
        text("mark", null=True),
        big("started_at"),
        big("ended_at", null=True),
        big("late_ended_at", null=True),
        check(
            "chatlock_turns_state",
            "state IN ('running','done','failed','released','reclaimed','gave_up')",
        ),
        check("chatlock_turns_range", "state NOT IN ('done','gave_up') OR to_seq > from_seq"),
        check("chatlock_turns_ended", "(state = 'running') = (ended_at IS NULL)"),
        postgresql_with=FILL,
    )
    create_partial_index(op, "chatlock_turns_one_running", ["tenant", "thread_id"], "state = 'running'", unique=True)
    create_partial_index(
        op,
        "chatlock_turns_resolve_once",
        ["tenant", "thread_id", "incarnation", "from_seq"],
        "state IN ('done','gave_up')",
        unique=True,
    )
    op.create_index("chatlock_turns_by_end", "chatlock_turns", ["ended_at"])
    create_partial_index(
        op,
        "chatlock_turns_by_late_end",
        ["late_ended_at"],
        "late_ended_at IS NOT NULL",
        unique=False,
    )


def create_partial_index(op: Operations, name: str, columns: list[str], where: str, *, unique: bool) -> None:
    condition = sa.text(where)
    op.create_index(
        name,
        "chatlock_turns",
        columns,
        unique=unique,
        postgresql_where=condition,
        sqlite_where=condition,
    )


def create_due(op: Operations) -> None:
    op.create_table(
        "chatlock_due",
        key("tenant"),
        key("thread_id"),
        big("due_at"),
        small("priority"),
        big("dispatched_until", 0),
    )
    op.create_index("chatlock_due_order", "chatlock_due", ["due_at"])


def create_side_tables(op: Operations) -> None:
    op.create_table(
        "chatlock_sessions",
        key("tenant"),
        key("thread_id"),
        key("name"),
        text("value"),
        big("token"),
    )
    op.create_table(
        "chatlock_fences",
        key("tenant"),
        key("thread_id"),
        key("resource"),
        big("highest"),
    )
    op.create_table(
        "chatlock_windows",
        key("agent"),
        number_key("day"),
        big("longest_ms"),
        big("runs"),
    )


def create_audit(op: Operations) -> None:
    op.create_table(
        "chatlock_audit",
        sa.Column(
            "audit_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        big("at"),
        text("tenant"),
        text("thread_id"),
        big("incarnation"),
        big("token"),
        text("action"),
        text("actor"),
        text("reason"),
    )


def create_meta(op: Operations) -> None:
    meta = op.create_table("chatlock_meta", key("name"), big("value"))
    numbers = {"schema": 1, "min_client": 1, "epoch": 0, "windows_through": 0}
    op.bulk_insert(meta, [{"name": name, "value": value} for name, value in numbers.items()])
