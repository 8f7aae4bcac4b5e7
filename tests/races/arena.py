"""Where races are played: one database, clients that a schedule holds, and scenes to start from.

Operations run as the flows run them, through a client's executor, so that they have their points, retries and hot path;
no heartbeat or poller interferes. Backoff is none, so that a drain needs no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from chatlock import Chatlock, Key
from chatlock.inputs import new_id, payload_json, reply_json
from chatlock.ops import unanswered
from chatlock.ops.audit import Act
from chatlock.ops.base import Claim
from chatlock.ops.claim import Request, claim_due
from chatlock.ops.fence import raise_highest
from chatlock.ops.fetch import fetch
from chatlock.ops.finish import Finish
from chatlock.ops.operate import delete, park
from chatlock.ops.submit import Submission
from chatlock.protocol import Limits
from chatlock.schema import due, fences, messages, threads, turns
from chatlock.store import finish_once, submit_once
from chatlock.testing import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chatlock.ops.base import Message
    from chatlock.ops.claim import Granted
    from chatlock.ops.submit import Submitted
    from tests.support.databases import Database

LIMITS = Limits(backoff_ms=0, lease_ms=600_000)  # a busy machine takes longer than ten seconds over a scene
AGENT = "default"
ACTORS_MAX = 3
COPIED = {
    str(table.name): ", ".join(column.name for column in table.columns if column.name not in ("tenant", "thread_id"))
    for table in (threads, messages, turns, due, fences)
}
APP_TABLE = "CREATE TABLE app_log(tenant text, thread_id text, token bigint, who text)"
OF_THREAD = " WHERE tenant = ? AND thread_id = ?"


def request(owner: str) -> Request:
    """A claim request with a fresh claim_id."""
    return Request(new_id(), owner, LIMITS.lease_ms, LIMITS.window_default_ms, LIMITS)


def submission(key: Key, message_id: str) -> Submission:
    text, text_hash = payload_json(f"text of {message_id}")
    return Submission(key, message_id, text, text_hash, AGENT)


def finish_of(claim: Claim, hand: tuple[Message, ...], reply: str) -> Finish:
    """The finish of a turn that holds `hand` in memory."""
    return Finish(claim, hand[-1].seq, len(hand), reply_json(reply))


@dataclass(frozen=True)
class Held:
    """What a scene leaves in an actor's memory: a claim, live or lost, the messages it fetched, and its thread."""

    claim: Claim
    hand: tuple[Message, ...]

    @property
    def key(self) -> Key:
        return self.claim.key


class Arena:
    """One database and its clients, attached to one schedule for as long as the arena lives."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.kind = database.kind
        self.clients = [
            Chatlock(database.url, tenant="arena", poller=False, pool_size=2, limits=LIMITS)
            for _ in range(ACTORS_MAX + 1)
        ]
        self.home = self.clients[-1]._executor
        self.schedule = Schedule()
        self.connection = database.connect()
        self.connection.execute(APP_TABLE)
        self._made: dict[str, tuple[Held, dict[str, list[Any]]]] = {}

    def __enter__(self) -> Self:
        self._attached = self.schedule.attached(*self.clients)
        self._attached.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._attached.__exit__(None, None, None)
        for client in self.clients:
            client.close()

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """What the test's own connection reads."""
        mark = "?" if self.kind == "sqlite" else "%s"
        return self.connection.execute(statement.replace("?", mark), values).fetchall()

    def thread(self, key: Key) -> tuple[str, int]:
        """The thread's committed status and token."""
        rows = self.rows("SELECT status, token FROM chatlock_threads" + OF_THREAD, key.tenant, key.thread)
        return rows[0] if rows else ("absent", 0)

    # -- the scenes --------------------------------------------------------------------------------------------------
    def submit(self, key: Key, message_id: str, *, claims: bool = False) -> Submitted:
        return submit_once(self.home, submission(key, message_id), request("scene") if claims else None, LIMITS)

    def granted(self, key: Key, message_id: str) -> Granted:
        granted = self.submit(key, message_id, claims=True).granted
        assert granted is not None
        return granted

    def release(self, key: Key, claim: Claim) -> None:
        assert self.home.transaction("release", lambda c: unanswered.release(c, key, claim.claim_id))

    def build(self, scene: str, tenant: str, threads: Sequence[str]) -> dict[str, Held]:
        """Fresh threads in the scene's state, each a copy of the rows of the one in which it was made."""
        if scene not in self._made:
            self._made[scene] = self._make(scene)
        held, rows_of = self._made[scene]
        for table, rows in rows_of.items():
            copies = [(tenant, thread, *row) for thread in threads for row in rows]
            if copies:
                marks = ", ".join([f"({', '.join('?' * len(copies[0]))})"] * len(copies))
                columns = f"{table}(tenant, thread_id, {COPIED[table]})"
                self.rows(f"INSERT INTO {columns} VALUES {marks} RETURNING 1", *chain(*copies))
        return {thread: replace(held, claim=replace(held.claim, key=Key(tenant, thread))) for thread in threads}

    def prepare(self) -> None:
        """Makes every scene now, before anything is weakened."""
        for scene in SCENES:
            self.build(scene, "prepared", [scene])
        self.clear()

    def clear(self) -> None:
        """Forgets every thread."""
        for table in (*COPIED, "app_log"):
            self.rows(f"DELETE FROM {table} RETURNING 1")

    def _make(self, scene: str) -> tuple[Held, dict[str, list[Any]]]:
        key = Key("scene", scene)
        held = SCENES[scene](self, key)
        of = (key.tenant, key.thread)
        rows = {table: self.rows(f"SELECT {columns} FROM {table}{OF_THREAD}", *of) for table, columns in COPIED.items()}
        for table in COPIED:  # no sweep is to find the original
            self.rows(f"DELETE FROM {table}{OF_THREAD} RETURNING 1", *of)
        return held, rows


def _surplus(arena: Arena, key: Key) -> Held:
    """Message m0 was answered in the second try; the claim of the first, and its due row, are left over."""
    lost = arena.granted(key, "m0")
    arena.release(key, lost.claim)
    again = arena.granted(key, "m0")
    assert finish_once(arena.home, finish_of(again.claim, again.messages, "early"), None)
    return Held(lost.claim, lost.messages)


def _idle(arena: Arena, key: Key) -> Held:
    """The same, and a sweep has deleted the due row."""
    held = _surplus(arena, key)
    assert arena.home.transaction("claim_due", lambda c: claim_due(c, key, request("scene"))) is None
    return held


def _running(arena: Arena, key: Key) -> Held:
    """A turn holds m1; nothing else is pending: the case of the hot finish."""
    _idle(arena, key)
    live = arena.granted(key, "m1")
    return Held(live.claim, live.messages)


def _more(arena: Arena, key: Key) -> Held:
    """A turn holds m1, and m2 waits."""
    held = _running(arena, key)
    arena.submit(key, "m2")
    return held


def _stale(arena: Arena, key: Key) -> Held:
    """The same, and the lease has passed."""
    held = _more(arena, key)
    arena.rows(f"UPDATE chatlock_threads SET expires_at = 1 {OF_THREAD} RETURNING 1", key.tenant, key.thread)
    return held


def _overdue(arena: Arena, key: Key) -> Held:
    """A turn holds m1, m2 waits, and the turn was asked to stop for longer than its grace."""
    held = _more(arena, key)
    asked = "UPDATE chatlock_threads SET cancel_token = token, cancel_until = 1, cancel_queued = 'keep'"
    arena.rows(f"{asked}{OF_THREAD} RETURNING 1", key.tenant, key.thread)
    return held


def _pending(arena: Arena, key: Key) -> Held:
    """m1 and m2 wait for a turn; the one that had m1 was released."""
    held = _more(arena, key)
    arena.release(key, held.claim)
    return held


def _parked(arena: Arena, key: Key) -> Held:
    """The same, and the thread is parked."""
    held = _pending(arena, key)
    act = Act("park", "scene", "")
    assert arena.home.transaction("park", lambda c: park(c, key, None, act)).done
    return held


def _absent(arena: Arena, key: Key) -> Held:
    """No such thread, and a claim that nobody was granted."""
    asked = request("scene")
    claim = Claim(key, 1, 0, asked.claim_id, 0, AGENT, asked.lease_ms)
    return Held(claim, ())


def _deleted(arena: Arena, key: Key) -> Held:
    """The thread was deleted under a turn, with m2 pending."""
    held = _more(arena, key)
    assert arena.home.transaction("delete", lambda c: delete(c, key, Act("delete", "scene", ""))).done
    return held


def _charged(arena: Arena, key: Key) -> Held:
    """m1 and m2 wait; the turn that had both in hand failed once."""
    held = _more(arena, key)
    hand = arena.home.transaction("fetch", lambda c: fetch(c, held.claim, held.claim.from_seq, LIMITS))
    failed = arena.home.transaction(
        "fail", lambda c: unanswered.fail(c, held.claim, held=len(hand), error="broke", limits=LIMITS, jitter=1.0)
    )
    assert failed is not None
    return Held(held.claim, hand)


def _reclaimed(arena: Arena, key: Key) -> Held:
    """m1 and m2 wait; the turn that had m1 in hand was reclaimed."""
    held = _stale(arena, key)
    seen = unanswered.Observed(key, held.claim.token, 0, stale=True)
    assert arena.home.transaction("reclaim", lambda c: unanswered.reclaim(c, seen, LIMITS, 1.0)) is not None
    return held


def _fenced(arena: Arena, key: Key) -> Held:
    """A turn holds m1, and the resource `ledger` has seen its token."""
    held = _running(arena, key)
    arena.home.transaction("raise_highest", lambda c: raise_highest(c, held.claim, "ledger"))
    return held


SCENES: dict[str, Callable[[Arena, Key], Held]] = {
    "surplus": _surplus,
    "idle": _idle,
    "running": _running,
    "more": _more,
    "stale": _stale,
    "overdue": _overdue,
    "pending": _pending,
    "parked": _parked,
    "absent": _absent,
    "deleted": _deleted,
    "charged": _charged,
    "reclaimed": _reclaimed,
    "fenced": _fenced,
}
