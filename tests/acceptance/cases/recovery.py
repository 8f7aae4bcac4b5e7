"""What the cases of recovery need beside support.py: a claim aged by milliseconds, the whole state, statements sent."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import event

from chatlock import Chatlock, Limits, Queued, Turn
from chatlock.io import drive
from chatlock.ops import fence, fetch
from chatlock.ops.base import Claim
from chatlock.ops.finish import Finish
from chatlock.ops.heartbeat import heartbeat
from chatlock.store import finish_once
from tests.acceptance.cases.support import TENANT, message_rows, rows, turn_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.databases import Database

    Client = Callable[..., Chatlock]

STILL = Limits(beat_ms=9_999)
"""For a client whose heartbeat comes only when the test calls `beat`."""
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
TABLES = ("threads", "messages", "turns", "due", "sessions", "fences", "windows", "audit")


def age_by(database: Database, ms: int, thread: str = "thread") -> None:
    """A: moves a running claim `ms` into the past (or, if negative, the future), as a clock that goes on would."""
    moved = rows(
        database,
        "UPDATE chatlock_threads SET claimed_at = claimed_at - :ms, expires_at = expires_at - :ms,"
        " window_ends_at = window_ends_at - :ms WHERE thread_id = :thread AND status = 'running' RETURNING token",
        ms=ms,
        thread=thread,
    )
    assert len(moved) == 1, "no running claim to age"
    rows(
        database,
        "UPDATE chatlock_turns SET started_at = started_at - :ms WHERE thread_id = :thread AND state = 'running'",
        ms=ms,
        thread=thread,
    )


def now_ms(database: Database) -> int:
    """The database's clock."""
    clock = {
        "postgresql": "(extract(epoch FROM clock_timestamp())*1000)::bigint",
        "sqlite": "CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)",
    }
    return int(rows(database, f"SELECT {clock[database.kind]} AS now")[0]["now"])


def beat(chat: Any, claim: Claim) -> bool:
    """One heartbeat now, through the client's own connection for it."""
    return chat._executor.beat(lambda conn: heartbeat(conn, claim)).beat == "extended"


LATE: dict[str, Callable[[Any, Claim], object]] = {
    "mark": lambda chat, claim: chat._executor.transaction("mark", lambda c: fetch.mark(c, claim, '"late"')),
    "fetch": lambda chat, claim: drive(chat._flows.store.fetch(claim, 0)),
    "session": lambda chat, claim: drive(chat._flows.store.keep_session(claim, "name", "late")),
    "fence": lambda chat, claim: chat._executor.transaction("fence", lambda c: fence.fence(c, claim)),
    "heartbeat": beat,
    "release": lambda chat, claim: drive(chat._flows.store.release(claim.key, claim.claim_id)),
    "finish": lambda chat, claim: finish_once(chat._executor, Finish(claim, claim.from_seq + 1, 1, '"late"'), None),
    "fail": lambda chat, claim: drive(chat._flows.store.fail(claim, 1, "late")),
}
"""What a turn may still try after its end, past every check of its own process."""


def dump(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Everything that chatlock keeps, but the note that a reclaimed turn came back late."""
    kept = {table: rows(database, f"SELECT * FROM chatlock_{table} ORDER BY 1, 2, 3, 4") for table in TABLES}
    for turn in kept["turns"]:
        del turn["late_ended_at"]
    return kept


def turn_states(database: Database, thread: str = "thread") -> list[str]:
    """The state of each turn of the thread, in order of token."""
    return [turn["state"] for turn in turn_rows(database, thread)]


def dispositions(database: Database, thread: str = "thread") -> dict[str, str]:
    """The disposition of each message of the thread."""
    return {message["message_id"]: message["disposition"] for message in message_rows(database, thread)}


@contextmanager
def statements_of(chat: Any) -> Iterator[list[str]]:
    """Every statement that the client sends through SQLAlchemy while the block runs, BEGIN and COMMIT among them."""
    sent: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        sent.append(statement)

    engine = chat._executor.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)


def no_room_for_the_answer(database: Database, thread: str) -> None:
    """The turn is at its last attempt, and a uniqueness rule refuses that it gives up."""
    rows(database, "UPDATE chatlock_threads SET attempts = 4, beat = 1 WHERE thread_id = :thread", thread=thread)
    rows(
        database,
        "INSERT INTO chatlock_turns (tenant, thread_id, incarnation, token, claim_id, from_seq, to_seq, state,"
        " started_at, ended_at) VALUES (:tenant, :thread, 1, 0, 'other', 0, 1, 'done', 0, 0)",
        tenant=TENANT,
        thread=thread,
    )


def no_message_to_blame(database: Database, thread: str) -> None:
    """The turn is at its last attempt, and the message that would become dead is not pending."""
    rows(database, "UPDATE chatlock_threads SET attempts = 4, beat = 1 WHERE thread_id = :thread", thread=thread)
    rows(database, "UPDATE chatlock_messages SET disposition = 'cancelled' WHERE thread_id = :thread", thread=thread)


def hundred_stale(database: Database, client: Client) -> None:
    """A hundred threads whose turns died, each with a newer message behind."""
    chat = client(database, limits=STILL)
    for number in range(100):
        assert isinstance(chat.begin(f"t{number}", "one", message_id="m1"), Turn)
        assert isinstance(chat.submit(f"t{number}", "two", message_id="m2", wait_ms=0), Queued)
    rows(database, "UPDATE chatlock_threads SET expires_at = 1, window_ends_at = 1")
