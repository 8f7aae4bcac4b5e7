"""The tables.  CHECK and UNIQUE constraints carry the invariants where SQL can say them; table names are fixed.

No index on `chatlock_threads`, partial ones included, mentions a column that a claim changes, so its updates stay HOT:
running turns are found by the partial index on turns, waiting threads in `chatlock_due`.
"""

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, MetaData, Text, UniqueConstraint, text
from sqlmodel import Field, SQLModel

SCHEMA_VERSION = 4
"""The number of the newest revision; `chatlock_meta` holds the database's own and the least client version it
admits.
"""

VERSION_TABLE = "chatlock_alembic_version"
metadata = MetaData()


class Base(SQLModel):
    """Chatlock's tables live in a MetaData of their own, apart from the application's."""

    metadata = metadata


def big(default: int | None = None, *, null: bool = False, key: bool = False) -> Any:
    """A BIGINT column."""
    server = None if default is None else text(str(default))
    return Field(
        default=default,
        sa_column=Column(BigInteger, primary_key=key, nullable=null, server_default=server, autoincrement=False),
    )


def small(default: int) -> Any:
    """An INTEGER column with a default."""
    return Field(default=default, sa_column=Column(Integer, nullable=False, server_default=text(str(default))))


def string(default: str | None = None, *, null: bool = False, key: bool = False) -> Any:
    """A TEXT column."""
    server = None if default is None else text(f"'{default}'")
    return Field(default=default, sa_column=Column(Text, primary_key=key, nullable=null, server_default=server))


_FILL = {"postgresql_with": {"fillfactor": 60}}


class Thread(Base, table=True):
    """One conversation: the row that is locked first by every transaction."""

    __tablename__ = "chatlock_threads"
    __table_args__ = (
        CheckConstraint("status IN ('idle','running','parked','deleted')", name="chatlock_threads_status"),
        CheckConstraint(
            "done_seq >= 0 AND done_seq <= fetched_seq AND fetched_seq <= last_seq", name="chatlock_threads_seqs"
        ),
        CheckConstraint("(status = 'running') = (claim_id IS NOT NULL)", name="chatlock_threads_claim"),
        CheckConstraint("(status = 'running') = (expires_at IS NOT NULL)", name="chatlock_threads_expires"),
        CheckConstraint("(status = 'running') = (window_ends_at IS NOT NULL)", name="chatlock_threads_window"),
        CheckConstraint("holes >= 0 AND holes <= last_seq - done_seq", name="chatlock_threads_holes"),
        CheckConstraint(
            "token >= 0 AND incarnation >= 1 AND attempts >= 0 AND stalls >= 0", name="chatlock_threads_counts"
        ),
        _FILL,
    )
    tenant: str = string(key=True)
    thread_id: str = string(key=True)
    incarnation: int = big(1)
    agent: str = string("default")
    status: str = string("idle")
    token: int = big(0)
    claim_id: str | None = string(null=True)
    owner: str | None = string(null=True)
    claimed_at: int | None = big(null=True)
    expires_at: int | None = big(null=True)
    window_ends_at: int | None = big(null=True)
    lease_ms: int | None = big(null=True)
    beat: int = big(0)
    last_seq: int = big(0)
    fetched_seq: int = big(0)
    done_seq: int = big(0)
    holes: int = big(0)
    attempts: int = small(0)
    stalls: int = small(0)
    not_before: int = big(0)
    quiet_until: int = big(0)
    cancel_token: int | None = big(null=True)
    awaiting: str | None = string(null=True)
    priority: int = small(0)
    created_at: int = big(0)
    cancel_until: int | None = big(null=True)
    cancel_queued: str | None = string(null=True)
    cancel_upto: int | None = big(null=True)
    interrupts: int = small(0)
    awaiting_rule: str | None = string(null=True)


class Message(Base, table=True):
    """An inbound item.  The unique key starts with message_id, so that only the primary key serves a range of seq."""

    __tablename__ = "chatlock_messages"
    __table_args__ = (
        UniqueConstraint("tenant", "message_id", "thread_id", "incarnation", name="chatlock_messages_once"),
        CheckConstraint(
            "disposition IN ('pending','answered','superseded','cancelled','expired','dead','deleted')",
            name="chatlock_messages_disposition",
        ),
        CheckConstraint("disposition <> 'pending' OR turn_token IS NULL", name="chatlock_messages_pending"),
        CheckConstraint(
            "disposition NOT IN ('answered','dead') OR turn_token IS NOT NULL", name="chatlock_messages_turn"
        ),
        _FILL,
    )
    tenant: str = string(key=True)
    thread_id: str = string(key=True)
    incarnation: int = big(key=True)
    seq: int = big(key=True)
    message_id: str = string()
    payload: str | None = string(null=True)
    payload_hash: str = string()
    disposition: str = string("pending")
    turn_token: int | None = big(null=True)
    policy: str = string("enqueue")
    received_at: int = big()
    expire_ms: int | None = big(null=True)
    redrive_of: str | None = string(null=True)
    trace: str | None = string(null=True)
    superseded_by: int | None = big(null=True)


class Turn(Base, table=True):
    """One run of the agent under one claim.  Its indexes refuse a second running turn and a second answer."""

    __tablename__ = "chatlock_turns"
    __table_args__ = (
        CheckConstraint(
            "state IN ('running','done','failed','released','reclaimed','gave_up')", name="chatlock_turns_state"
        ),
        CheckConstraint("state NOT IN ('done','gave_up') OR to_seq > from_seq", name="chatlock_turns_range"),
        CheckConstraint("(state = 'running') = (ended_at IS NULL)", name="chatlock_turns_ended"),
        Index(
            "chatlock_turns_one_running",
            "tenant",
            "thread_id",
            unique=True,
            postgresql_where=text("state = 'running'"),
            sqlite_where=text("state = 'running'"),
        ),
        Index(
            "chatlock_turns_resolve_once",
            "tenant",
            "thread_id",
            "incarnation",
            "from_seq",
            unique=True,
            postgresql_where=text("state IN ('done','gave_up')"),
            sqlite_where=text("state IN ('done','gave_up')"),
        ),
        Index("chatlock_turns_by_end", "ended_at"),
        Index(
            "chatlock_turns_by_late_end",
            "late_ended_at",
            postgresql_where=text("late_ended_at IS NOT NULL"),
            sqlite_where=text("late_ended_at IS NOT NULL"),
        ),
        _FILL,
    )
    tenant: str = string(key=True)
    thread_id: str = string(key=True)
    incarnation: int = big(key=True)
    token: int = big(key=True)
    claim_id: str = string()
    owner: str | None = string(null=True)
    agent: str = string("default")
    from_seq: int = big()
    to_seq: int | None = big(null=True)
    state: str = string("running")
    reply: str | None = string(null=True)
    error: str | None = string(null=True)
    mark: str | None = string(null=True)
    started_at: int = big()
    ended_at: int | None = big(null=True)
    late_ended_at: int | None = big(null=True)
    question: str | None = string(null=True)


class Due(Base, table=True):
    """Invariant D: an idle thread with pending messages has a row here, written only under the thread's lock."""

    __tablename__ = "chatlock_due"
    __table_args__ = (
        Index("chatlock_due_order", "due_at"),
        Index("chatlock_due_by_tenant", "tenant", "priority", "due_at"),
    )
    tenant: str = string(key=True)
    thread_id: str = string(key=True)
    due_at: int = big()
    priority: int = small(0)
    dispatched_until: int = big(0)


class Session(Base, table=True):
    """One retained identity per thread and name, created under a claim: an external conversation id."""

    __tablename__ = "chatlock_sessions"
    tenant: str = string(key=True)
    thread_id: str = string(key=True)
    name: str = string(key=True)
    value: str = string()
    token: int = big()


class Fence(Base, table=True):
    """The highest token that a resource written by this thread has seen."""

    __tablename__ = "chatlock_fences"
    tenant: str = string(key=True)
    thread_id: str = string(key=True)
    resource: str = string(key=True)
    highest: int = big()


class Window(Base, table=True):
    """The longest observed run of an agent on a day (days since 1970-01-01 UTC); written by the sweeper only."""

    __tablename__ = "chatlock_windows"
    agent: str = string(key=True)
    day: int = big(key=True)
    longest_ms: int = big()
    runs: int = big()
    total_ms: int = big(0)


class Intent(Base, table=True):
    """One external effect, written by the transaction that decided it; sent in order of token within its thread."""

    __tablename__ = "chatlock_intents"
    __table_args__ = (
        CheckConstraint(
            "state IN ('pending','leased','sent','failed','expired','cancelled')", name="chatlock_intents_state"
        ),
        CheckConstraint("(state = 'leased') = (leased_until IS NOT NULL)", name="chatlock_intents_leased"),
        Index(
            "chatlock_intents_open",
            "tenant",
            "thread_id",
            "incarnation",
            "token",
            postgresql_where=text("state IN ('pending','leased')"),
            sqlite_where=text("state IN ('pending','leased')"),
        ),
    )
    tenant: str = string(key=True)
    thread_id: str = string(key=True)
    incarnation: int = big(key=True)
    token: int = big(key=True)
    name: str = string(key=True)
    agent: str = string()
    step_key: str = string()
    payload: str | None = string(null=True)
    state: str = string("pending")
    attempts: int = small(0)
    lease_token: int = big(0)
    leased_until: int | None = big(null=True)
    not_before: int = big(0)
    expires_at: int | None = big(null=True)
    created_at: int = big()
    ended_at: int | None = big(null=True)
    error: str | None = string(null=True)


class Audit(Base, table=True):
    """What an operator did, to which turn, and why."""

    __tablename__ = "chatlock_audit"
    audit_id: int | None = Field(
        default=None,
        sa_column=Column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
    )
    at: int = big()
    tenant: str = string()
    thread_id: str = string()
    incarnation: int = big()
    token: int = big()
    action: str = string()
    actor: str = string()
    reason: str = string()


class Meta(Base, table=True):
    """Numbers of the whole database: schema, min_client, epoch, windows_through."""

    __tablename__ = "chatlock_meta"
    name: str = string(key=True)
    value: int = big()


threads: Any = Thread.__table__  # type: ignore[attr-defined]
messages: Any = Message.__table__  # type: ignore[attr-defined]
turns: Any = Turn.__table__  # type: ignore[attr-defined]
due: Any = Due.__table__  # type: ignore[attr-defined]
sessions: Any = Session.__table__  # type: ignore[attr-defined]
fences: Any = Fence.__table__  # type: ignore[attr-defined]
windows: Any = Window.__table__  # type: ignore[attr-defined]
intents: Any = Intent.__table__  # type: ignore[attr-defined]
audit: Any = Audit.__table__  # type: ignore[attr-defined]
meta: Any = Meta.__table__  # type: ignore[attr-defined]


def include_object(object_: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:
    """For the application's own Alembic env.py: leaves every chatlock table and index out of its autogenerate."""
    if type_ == "table":
        return not (name or "").startswith("chatlock_")
    table = getattr(object_, "table", None)
    return table is None or not str(table.name).startswith("chatlock_")
