"""The controls of the acceptance cases: what holds, parks, cuts, ages, counts and quiesces.

    H  `Agent`            a handler that reports each turn and holds it until the test lets it go
    X  `parked_row`       a connection of the test holds a thread's row, so that the product waits
    W  `Points`           holds one client at a named pause point; `hold_statement` at a statement
    T  `Proxy` (wire.py)  a wire in front of a server that holds a message, or cuts around it
    K  `stop_at_point`, `stop_at_statement`   a child stops there until the test kills it
    A  `age_claim`, `age_message`, then `reclaim_aged` on a set clock
    M  `Journal`          overlap meter and answer ledger, across processes and kills; `Callers.replies`
       is the reply sink; `EffectSink`       an outside world that can refuse a stale token
    Q  `quiesce`          sweeps until nothing is left; `assert_invariants` then checks N1 to N8

None of them sleeps for an order: each waits, bounded, for a fact that it can see.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import re
import signal
import threading
from collections import defaultdict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import sqlalchemy

from chatlock import AlreadyAnswered, Answered, Busy, Conflict, Dead, Queued
from chatlock.dialects import PerDialect
from chatlock.ops.base import CATALOG
from tests.acceptance.cases.wire import Proxy
from tests.support.databases import connect
from tests.support.waiting import SECONDS_MAX, Gate, blocked_backends, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from chatlock import Chatlock, Outcome, Turn
    from tests.support.databases import Database

TENANT = "t"
SWEEPS_MAX = 100


# -- SQL of the test itself --------------------------------------------------------------------------------------------
def rows(database: Database, statement: str, **values: object) -> list[dict[str, Any]]:
    """The rows of a statement with :named values, on a connection of its own, in autocommit."""
    if database.kind == "postgresql":
        statement = re.sub(r"(?<!:):(\w+)", r"%(\1)s", statement)
    with closing(connect(database.url)) as connection:
        cursor = connection.execute(statement, values)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in (cursor.fetchall() if names else ())]


def thread_row(database: Database, thread: str, tenant: str = TENANT) -> dict[str, Any]:
    """The one row of a thread."""
    found = rows(
        database,
        "SELECT * FROM chatlock_threads WHERE tenant = :tenant AND thread_id = :thread",
        tenant=tenant,
        thread=thread,
    )
    assert len(found) == 1, found
    return found[0]


def message_rows(database: Database, thread: str, tenant: str = TENANT) -> list[dict[str, Any]]:
    """The messages of a thread, in order of seq."""
    return rows(
        database,
        "SELECT * FROM chatlock_messages WHERE tenant = :tenant AND thread_id = :thread ORDER BY incarnation, seq",
        tenant=tenant,
        thread=thread,
    )


def turn_rows(database: Database, thread: str, tenant: str = TENANT) -> list[dict[str, Any]]:
    """The turns of a thread, in order of token."""
    return rows(
        database,
        "SELECT * FROM chatlock_turns WHERE tenant = :tenant AND thread_id = :thread ORDER BY token",
        tenant=tenant,
        thread=thread,
    )


def row_count(database: Database) -> dict[str, int]:
    """How many rows each table of the protocol has: what a refused call must not change."""
    tables = ("threads", "messages", "turns", "due", "sessions", "audit")
    return {name: rows(database, f"SELECT count(*) AS n FROM chatlock_{name}")[0]["n"] for name in tables}


# -- M: meters ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Entry:
    """One line of a journal.  what: enter or leave."""

    what: str
    thread: str
    token: int
    ids: tuple[str, ...]
    pid: int


class Journal:
    """M: what handlers did, in one order, across OS threads, processes and kills.

    Each entry is one append to one file, so an entry that was written survives the death of its process, and the order
    of the lines is the order in which things happened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def write(self, what: str, turn: Turn) -> None:
        """Adds an entry."""
        line = json.dumps([what, turn.key.thread, turn.token, [m.message_id for m in turn.messages], os.getpid()])
        with self.path.open("ab", buffering=0) as file:
            file.write(f"{line}\n".encode())

    def entries(self, what: str | None = None, thread: str | None = None) -> list[Entry]:
        """The entries of a kind, of a thread, or all."""
        read = (json.loads(line) for line in self.path.read_text().splitlines())
        every = (Entry(kind, name, token, tuple(ids), pid) for kind, name, token, ids, pid in read)
        return [e for e in every if what in (None, e.what) and thread in (None, e.thread)]

    def enters(self, thread: str | None = None) -> list[Entry]:
        """Every time that a handler began."""
        return self.entries("enter", thread)

    def wait_enters(self, count: int, thread: str | None = None) -> list[Entry]:
        """Returns once so many handlers have begun."""
        until(lambda: len(self.enters(thread)) >= count, what=f"handler number {count}")
        return self.enters(thread)

    def overlap(self, thread: str) -> int:
        """The overlap meter: the most handlers that were inside the thread at once."""
        inside = most = 0
        for entry in self.entries(thread=thread):
            inside += {"enter": 1, "leave": -1}.get(entry.what, 0)
            most = max(most, inside)
        return most


class EffectSink:
    """M: the world outside, which remembers every effect, and refuses one under a stale token if it was told to."""

    def __init__(self, *, fenced: bool = False) -> None:
        self.effects: list[tuple[str, Any, int]] = []
        self.refused: list[tuple[str, Any, int]] = []
        self._fenced = fenced
        self._lock = threading.Lock()

    def apply(self, key: str, payload: Any, token: int) -> bool:
        """Whether the effect was applied."""
        with self._lock:
            highest = max((seen for _, _, seen in self.effects), default=0)
            stale = self._fenced and token < highest
            (self.refused if stale else self.effects).append((key, payload, token))
            return not stale


# -- H: the held handler -----------------------------------------------------------------------------------------------
class Holding(Protocol):
    """What an agent can be held by: a Gate, or one that reaches over processes."""

    def hold(self) -> None: ...


class ProcessGate:
    """A gate that reaches over a fork: make it before, hold at it in the child, open it in the test."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self._entered, self._opened = context.Event(), context.Event()

    def hold(self) -> None:
        """See Gate.hold."""
        self._entered.set()
        assert self._opened.wait(SECONDS_MAX), "nobody opened the gate"

    def wait_entered(self) -> None:
        """See Gate.wait_entered."""
        assert self._entered.wait(SECONDS_MAX), "nobody reached the gate"

    def open(self) -> None:
        """See Gate.open."""
        self._opened.set()


class Agent:
    """H: a handler that enters its turn in the journal, holds where it was told to, and answers with the ids it holds.

    chat.handler()(agent);  gate = agent.hold("thread");  .. gate.wait_entered() .. gate.open()
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._gates: dict[str, deque[Holding]] = defaultdict(deque)
        self._made: list[Gate] = []

    def hold(self, thread: str) -> Gate:
        """A gate for one turn of the thread that is yet to come."""
        gate = Gate()
        self._made.append(gate)
        self.hold_by(thread, gate)
        return gate

    def let_go(self) -> None:
        """Opens every gate, so that a case that failed ends at once."""
        for gate in self._made:
            gate.open()

    def hold_by(self, thread: str, gate: Holding) -> None:
        """As `hold`, by a gate of the test's own."""
        self._gates[thread].append(gate)

    def __call__(self, turn: Turn) -> Any:
        self.journal.write("enter", turn)
        try:
            waiting = self._gates[turn.key.thread]
            if waiting:
                waiting.popleft().hold()
            return {"answers": [m.message_id for m in turn.messages]}
        finally:
            self.journal.write("leave", turn)


class Callers:
    """People who submit, each in an OS thread, and the list of what they were told."""

    def __init__(self, count: int = 40) -> None:
        self.told: list[tuple[str, Outcome]] = []
        self._pool = ThreadPoolExecutor(count)

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        """Runs anything beside the test."""
        return self._pool.submit(function, *arguments, **options)

    def submit(self, chat: Chatlock, thread: str, payload: object, **options: Any) -> Future[Outcome]:
        """Submits beside the test; the outcome is noted as told."""
        return self._pool.submit(self.ask, chat, thread, payload, **options)

    def ask(self, chat: Chatlock, thread: str, payload: object, **options: Any) -> Outcome:
        """Submits, and notes the outcome as told."""
        outcome = chat.submit(thread, payload, **options)
        self.told.append((thread, outcome))
        return outcome

    def replies(self, thread: str) -> list[Answered]:
        """M: the reply sink. What was to be shown in the thread, in the order in which callers were told."""
        return [o for name, o in self.told if name == thread and isinstance(o, Answered)]

    def close(self) -> None:
        """Waits for everyone."""
        self._pool.shutdown()


# -- X: the parked row -------------------------------------------------------------------------------------------------
class ParkedRow:
    """X: the test's own transaction on a thread's row (on SQLite: on the file)."""

    def __init__(self, database: Database, connection: Any) -> None:
        self.database, self.connection = database, connection
        self._open = True

    def let_go(self, how: str = "COMMIT") -> None:
        """Ends the transaction; who waits goes on."""
        if self._open:
            self._open = False
            self.connection.execute(how)


@contextmanager
def parked_row(database: Database, thread: str, tenant: str = TENANT) -> Iterator[ParkedRow]:
    """X: holds the thread's row until let go; see `wait_blocked` for the barrier."""
    with closing(connect(database.url)) as connection:
        if database.kind == "sqlite":
            connection.execute("BEGIN IMMEDIATE")
        else:
            connection.execute("BEGIN")
            locked = connection.execute(
                "SELECT 1 FROM chatlock_threads WHERE tenant = %s AND thread_id = %s FOR UPDATE", (tenant, thread)
            ).fetchall()
            assert locked, "there is no such row to park"
        parked = ParkedRow(database, connection)
        try:
            yield parked
        finally:
            parked.let_go()


def wait_blocked(database: Database, points: Points, op: str, count: int = 1) -> None:
    """Returns once `count` backends wait for a lock; on SQLite once the client was sent away busy and came again.

    SQLite's busy retry begins the operation anew, so the second `<op>.begin` proves that the first met the lock.
    """
    if database.kind == "sqlite":
        until(lambda: points.passed.count(f"{op}.begin") > count, what=f"{op} that is sent away busy")
        return
    with closing(connect(database.url)) as watcher:
        until(lambda: len(blocked_backends(watcher)) >= count, what=f"{count} blocked backends")


# -- W: gates at points and statements ---------------------------------------------------------------------------------
class Points:
    """W: the pause points of one client.  `passed` records them; `hold` stops the next one that passes a name."""

    def __init__(self, chat: Any) -> None:
        self.passed: list[str] = []
        self._gates: dict[str, deque[Holding]] = defaultdict(deque)
        self._calls: dict[str, Callable[[], object]] = {}
        chat._executor.points = self

    def __call__(self, name: str) -> None:
        self.passed.append(name)
        if self._gates[name]:
            self._gates[name].popleft().hold()
        if name in self._calls:
            self._calls[name]()

    def hold(self, name: str) -> Gate:
        """A gate for one passing of `<op>.begin` or `<op>.commit`."""
        gate = Gate()
        self.hold_by(name, gate)
        return gate

    def hold_by(self, name: str, gate: Holding) -> None:
        """As `hold`, by a gate of the test's own."""
        self._gates[name].append(gate)

    def on(self, name: str, call: Callable[[], object]) -> None:
        """Calls `call` at every passing of the point, after any gate there; what it raises goes to the product."""
        self._calls[name] = call


def hold_statement(chat: Any, name: str, when: str = "before") -> Gate:
    """W: a gate before or after one catalogued statement of this client, the next time that it is executed."""
    gate, entry = Gate(), CATALOG[name]
    statements = tuple(entry) if isinstance(entry, PerDialect) else (entry,)
    waiting = [gate]

    def stop(conn: Any, cursor: Any, text: str, parameters: Any, context: Any, many: bool) -> None:
        if waiting and any(context.invoked_statement is statement for statement in statements):
            waiting.pop().hold()

    sqlalchemy.event.listen(chat._executor.engine, f"{when}_cursor_execute", stop)
    return gate


# -- K: where a child stops to be killed -------------------------------------------------------------------------------
def stop_here(where: str) -> None:
    """In a child: says where it stands and stays there until it is killed."""
    print(f"stopped at {where}", flush=True)
    while True:
        signal.pause()


def stop_at_point(chat: Any, name: str) -> None:
    """K: in a child, stops for ever at a pause point."""
    Points(chat).on(name, lambda: stop_here(name))


def stop_at_statement(chat: Any, number: int) -> None:
    """K: in a child, stops for ever before the client's `number`-th statement from now on (BEGIN and COMMIT count)."""
    count = 0

    def before(text: object) -> None:
        nonlocal count
        count += 1
        if count == number:
            stop_here(f"statement {number}: {' '.join(str(text).split())[:60]}")

    engine = chat._executor.engine
    if engine.dialect.name == "sqlite":
        engine.dispose()
        sqlalchemy.event.listen(engine, "connect", lambda connection, _: connection.set_trace_callback(before))
        engine.connect().close()
        count = 0
        return
    execute = psycopg.Cursor.execute

    def counted(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        before(query)
        return execute(self, query, *arguments, **options)

    psycopg.Cursor.execute = counted  # type: ignore[method-assign]


# -- A: age ------------------------------------------------------------------------------------------------------------
def age_claim(database: Database, thread: str, past: str = "lease", tenant: str = TENANT) -> None:
    """A: moves the times of a running claim back, past its lease or past its window.

    Use it with a client that does not beat meanwhile (heartbeat=False, a long beat_ms, or a process that was killed).
    """
    lease = "expires_at = expires_at - 2 * lease_ms, claimed_at = claimed_at - 2 * lease_ms"
    span = "2 * (window_ends_at - claimed_at)"
    window = (
        f"expires_at = expires_at - {span}, window_ends_at = window_ends_at - {span}, claimed_at = claimed_at - {span}"
    )
    moved = rows(
        database,
        f"UPDATE chatlock_threads SET {lease if past == 'lease' else window}"
        " WHERE tenant = :tenant AND thread_id = :thread AND status = 'running' RETURNING token",
        tenant=tenant,
        thread=thread,
    )
    assert len(moved) == 1, "no running claim to age"


def age_message(database: Database, message_id: str, ms: int) -> None:
    """A: moves a message's arrival back."""
    moved = rows(
        database,
        "UPDATE chatlock_messages SET received_at = received_at - :ms WHERE message_id = :id RETURNING seq",
        ms=ms,
        id=message_id,
    )
    assert len(moved) == 1, "no such message to age"


class SetClock:
    """A monotonic clock that only the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def reclaim_aged(chat: Any, clock: SetClock | None = None) -> int:
    """A: the two sweeps that the rule of two observations asks for, on a set clock; returns how many were reclaimed."""
    clock = clock or SetClock()
    chat._sweep._monotonic = clock
    reclaimed: int = chat._sweep.reclaim_stale()
    clock.now_s += chat._sweep._gap_s
    return reclaimed + int(chat._sweep.reclaim_stale())


def skip_backoff(database: Database) -> None:
    """A: every idle thread with pending messages is due now."""
    rows(database, "UPDATE chatlock_threads SET not_before = 0 WHERE status = 'idle'")
    rows(database, "UPDATE chatlock_due SET due_at = 0")


# -- Q: quiesce and the invariants -------------------------------------------------------------------------------------
def quiesce(chat: Chatlock, database: Database) -> None:
    """Q: sweeps until two in a row claim nothing; backoffs are skipped, so only a stuck thread keeps it from ending."""
    quiet = 0
    for _ in range(SWEEPS_MAX):
        skip_backoff(database)
        swept = chat.sweep_once()
        quiet = quiet + 1 if (swept.reclaimed, swept.turns) == (0, 0) else 0
        if quiet == 2:
            return
    raise AssertionError(f"not quiet after {SWEEPS_MAX} sweeps")


def assert_invariants(
    database: Database,
    chat: Chatlock,
    *,
    journal: Journal | None = None,
    told: list[tuple[str, Outcome]] | tuple[()] = (),
    tenant: str = TENANT,
) -> None:
    """N1 to N8 after Q, read from the tables alone; `told` pairs each thread with an outcome that a caller got."""
    verified = chat.verify()
    assert verified.ok, verified.breaches
    threads = {(r["tenant"], r["thread_id"]): r for r in rows(database, "SELECT * FROM chatlock_threads")}
    messages: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    turns: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows(database, "SELECT * FROM chatlock_messages ORDER BY incarnation, seq"):
        messages[row["tenant"], row["thread_id"]].append(row)
    for row in rows(database, "SELECT * FROM chatlock_turns ORDER BY token"):
        turns[row["tenant"], row["thread_id"]].append(row)
    assert messages.keys() | turns.keys() <= threads.keys(), "N6: a row without its own thread"
    for key, thread in threads.items():
        _assert_turns(thread, turns[key])
        _assert_messages(thread, messages[key], turns[key])
    for row in rows(database, "SELECT * FROM chatlock_due"):  # a surplus row is harmless
        thread = threads[row["tenant"], row["thread_id"]]
        assert thread["last_seq"] == thread["done_seq"], f"N7: {row['thread_id']} is left due"
    for thread_id, outcome in told:
        key = (tenant, thread_id)
        _assert_told(outcome, messages[key], turns[key])
    runners = [(t, o.turn) for t, o in told if isinstance(o, Answered)]
    assert len(runners) == len(set(runners)), "N8: two callers were told that they ran the same turn"
    if journal is not None:
        overlaps = {thread_id: journal.overlap(thread_id) for _, thread_id in threads}
        assert all(n <= 1 for n in overlaps.values()), f"N1: handlers overlapped: {overlaps}"


def _assert_turns(thread: dict[str, Any], turns: list[dict[str, Any]]) -> None:
    """N1, N4, N5, N7 of one thread."""
    assert thread["status"] in ("idle", "parked", "deleted"), f"N7: {thread['thread_id']} is {thread['status']}"
    done = [turn for turn in turns if turn["state"] == "done"]
    for before, after in itertools.pairwise(done):
        if before["incarnation"] == after["incarnation"]:
            assert before["to_seq"] <= after["from_seq"], "N4: turns committed against the order of seq"
        assert before["ended_at"] <= after["started_at"], "N1: two committed turns overlap"
    assert [turn["token"] for turn in turns] == sorted({turn["token"] for turn in turns}), "N5: a token came twice"
    assert all(turn["token"] <= thread["token"] for turn in turns), "N5: a turn above its thread's token"


def _assert_messages(thread: dict[str, Any], messages: list[dict[str, Any]], turns: list[dict[str, Any]]) -> None:
    """N2 and N3 of one thread."""
    by_token = {turn["token"]: turn for turn in turns}
    for message in messages:
        disposition, token = message["disposition"], message["turn_token"]
        where = f"{message['thread_id']}/{message['message_id']}"
        assert disposition != "pending" or thread["status"] == "parked", f"N2: {where} is still pending"
        if disposition == "answered":
            assert by_token[token]["state"] == "done", f"N2: {where} names a turn that did not commit"
            holding = [
                turn
                for turn in turns
                if turn["state"] == "done"
                and turn["incarnation"] == message["incarnation"]
                and turn["from_seq"] < message["seq"] <= turn["to_seq"]
            ]
            assert [turn["token"] for turn in holding] == [token], f"N3: {where} is in {len(holding)} committed turns"
        if disposition == "dead":
            assert by_token[token]["state"] == "gave_up", f"N2: {where} is dead without a reason"
            assert by_token[token]["error"], f"N2: {where} is dead without a reason"


def _assert_told(outcome: Outcome, messages: list[dict[str, Any]], turns: list[dict[str, Any]]) -> None:
    """N8 of one outcome."""
    stored = {message["message_id"]: message for message in messages}
    message = stored.get(outcome.message_id)
    match outcome:
        case Answered(reply=reply, turn=token) | AlreadyAnswered(reply=reply, turn=token):
            assert message is not None, f"N8: answered, but not stored: {outcome}"
            assert (message["disposition"], message["turn_token"]) == ("answered", token), f"N8: {outcome}"
            (turn,) = (turn for turn in turns if turn["token"] == token)
            assert json.loads(turn["reply"]) == reply, f"N8: another reply than the stored one: {outcome}"
        case Queued() | Conflict():
            assert message is not None, f"N8: not stored: {outcome}"
        case Dead():
            assert message is not None, f"N8: not stored: {outcome}"
            assert message["disposition"] == "dead", f"N8: {outcome}"
        case Busy():
            assert message is None, f"N8: refused as busy, and yet stored: {outcome}"
    if message is not None and outcome.seq is not None:
        assert message["seq"] == outcome.seq, f"N8: {outcome}"


__all__ = [
    "SECONDS_MAX",
    "Agent",
    "Callers",
    "EffectSink",
    "Entry",
    "Gate",
    "Journal",
    "Points",
    "ProcessGate",
    "Proxy",
    "SetClock",
    "age_claim",
    "age_message",
    "assert_invariants",
    "hold_statement",
    "message_rows",
    "parked_row",
    "quiesce",
    "reclaim_aged",
    "row_count",
    "rows",
    "skip_backoff",
    "stop_at_point",
    "stop_at_statement",
    "stop_here",
    "thread_row",
    "turn_rows",
    "until",
    "wait_blocked",
]
