"""What the tests of a client's life share: a stop at a numbered point, and what must be true when all is over."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from chatlock import AsyncChatlock, Limits
from tests.support.waiting import POLL_SECONDS, SECONDS_MAX, Gate, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.support.databases import Database

# A failed attempt is due again at once, and no turn's lease passes during a test.
AT_ONCE = Limits(backoff_ms=0, lease_ms=600_000)


OF_THREAD = "WHERE tenant = 't' AND thread_id = ?"
THREAD = f"SELECT * FROM chatlock_threads {OF_THREAD}"
MESSAGES = f"SELECT * FROM chatlock_messages {OF_THREAD} ORDER BY incarnation, seq"
TURNS = f"SELECT * FROM chatlock_turns {OF_THREAD} ORDER BY token"
CLOCK = {
    "postgresql": "(extract(epoch FROM clock_timestamp())*1000)::bigint",
    "sqlite": "CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)",
}


def read(database: Database, statement: str, *values: str) -> list[dict[str, Any]]:
    """The rows of a statement, on the one connection that the database keeps for the test."""
    connection = database._connections[0] if database._connections else database.connect()
    if database.kind == "postgresql":
        statement = statement.replace("?", "%s")
    cursor = connection.execute(statement, values)
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


class Stop:
    """Hears every point that a client passes; holds whoever passes point `number` until let go."""

    def __init__(self, chat: Any, number: int | None = None, name: str | None = None) -> None:
        self.passed: list[str] = []
        self.gate = Gate()
        self._number, self._name = number, name
        self._lock = threading.Lock()
        chat._executor.points = self

    def __call__(self, name: str) -> None:
        with self._lock:
            self.passed.append(name)
            stops = len(self.passed) - 1 == self._number or name == self._name
            if stops:
                self._name = None
        if stops:
            self.gate.hold()


async def until_async(predicate: Callable[[], object], what: str = "") -> None:
    """As `until`, and the loop runs on."""
    deadline = asyncio.get_running_loop().time() + SECONDS_MAX
    while not predicate():
        assert asyncio.get_running_loop().time() < deadline, f"{what or 'the condition'} did not hold"
        await asyncio.sleep(POLL_SECONDS / 5)  # bounded poll


async def steps(count: int = 5) -> None:
    """Lets every task that can run take some steps."""
    for _ in range(count):
        await asyncio.sleep(0)


@asynccontextmanager
async def quiet_loop() -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Nothing is reported to the loop meanwhile (a lost exception, a lost task), and no task is left.

    Yields the check that no task is left, for a test that plays rounds.
    """
    loop, before = asyncio.get_running_loop(), asyncio.all_tasks()
    reported: list[dict[str, Any]] = []

    async def no_task_left() -> None:
        await until_async(lambda: asyncio.all_tasks() == before, "the end of every task")

    loop.set_exception_handler(lambda _, context: reported.append(context))
    yield no_task_left
    await no_task_left()
    gc.collect()  # slow: once a test, not once a round
    await steps()
    assert not reported, reported
    loop.set_exception_handler(None)


def answering(chat: AsyncChatlock) -> None:
    """A handler that gives other tasks a chance."""

    @chat.handler()
    async def answer(turn: Any) -> list[str]:
        await steps(2)
        return [message.message_id for message in turn.messages]


def assert_nothing_kept(chat: Any) -> None:
    """The client holds no turn, no claim, no waiter and no heartbeat."""
    flows = chat._flows
    until(lambda: not flows.live.expected, what="no claim that is expected")
    assert not list(flows.live.turns.values())
    assert not [turn for turn in flows.heart.live() if turn.alive()]
    assert (len(flows.waiters), dict(flows.waiters._by_key)) == (0, {})


def assert_at_rest(database: Database, thread: str, *, attempts: int = 0, stalls: int = 0) -> None:
    """No turn runs, nothing was charged, and what is pending is due now."""
    assert "running" not in [turn["state"] for turn in read(database, TURNS, thread)]
    for row in read(database, THREAD, thread):
        assert (row["status"], row["claim_id"]) == ("idle", None), row
        assert (row["attempts"], row["stalls"], row["not_before"]) == (attempts, stalls, 0), row
        if row["last_seq"] > row["done_seq"]:
            clock = CLOCK[database.kind]
            due = read(database, f"SELECT due_at - {clock} AS in_ms FROM chatlock_due {OF_THREAD}", thread)
            assert len(due) == 1, "pending and not due"
            assert due[0]["in_ms"] <= 0, "pending, but due later"


def states(database: Database, thread: str) -> list[str]:
    return [turn["state"] for turn in read(database, TURNS, thread)]
