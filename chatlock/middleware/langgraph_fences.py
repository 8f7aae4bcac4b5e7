"""How a write of LangGraph's savers and the fence of a turn become one: in memory, or in one transaction."""

from __future__ import annotations

import copy
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any

from chatlock import AsyncTurn, ClaimLost, InvalidInput, Key, Turn
from chatlock.middleware import framework

InMemorySaver: Any = framework("langgraph.checkpoint.memory", "langgraph").InMemorySaver


class Checked:
    """For checkpoints in another store: the claim is checked before each write, which leaves a gap."""

    def seen(self, turn: Turn | AsyncTurn) -> None:
        """The turn reads: what an earlier one still writes is late from now on."""

    @contextmanager
    def held(self, saver: Any, turn: Turn | AsyncTurn) -> Iterator[Any]:
        """The saver to write with, under the claim.  Raises ClaimLost."""
        turn.check()
        yield saver

    @asynccontextmanager
    async def aheld(self, saver: Any, turn: Turn | AsyncTurn) -> AsyncIterator[Any]:
        """The same in async code."""
        with self.held(saver, turn) as writable:
            yield writable


class InMemory(Checked):
    """The checkpoints live in this process, and so does the highest token that has read each thread."""

    def __init__(self) -> None:
        self._highest: dict[Key, int] = {}
        self._lock = threading.RLock()

    def seen(self, turn: Turn | AsyncTurn) -> None:
        """Raises ClaimLost for a turn that a later one has followed."""
        with self._lock:
            if turn.token < self._highest.get(turn.key, 0):
                raise ClaimLost
            self._highest[turn.key] = turn.token

    @contextmanager
    def held(self, saver: Any, turn: Turn | AsyncTurn) -> Iterator[Any]:
        """Nobody else writes meanwhile.  Such a saver never suspends, so that the lock may be held over its await."""
        with self._lock:
            turn.check()
            self.seen(turn)
            yield saver


class InTransaction(Checked):
    """The checkpoints live in chatlock's database: a transaction that writes them begins with the fence."""

    @contextmanager
    def held(self, saver: Any, turn: Turn | AsyncTurn) -> Iterator[Any]:
        """A copy of the saver, on a connection whose transaction is fenced; it commits at the end."""
        if isinstance(turn, AsyncTurn):
            raise InvalidInput("bad_turn", "the graph of an AsyncTurn is run by ainvoke or astream")
        with ExitStack() as stack:
            if _pooled(saver):
                conn = stack.enter_context(saver.conn.connection())
            else:
                stack.enter_context(saver.lock)
                conn = saver.conn
            if _on_postgresql(saver):
                stack.enter_context(conn.transaction())
            else:
                saver.setup()
                stack.callback(conn.rollback)  # a no-op after the saver's own commit
            turn.fence(conn)
            yield _moved(saver, conn, threading.Lock())

    @asynccontextmanager
    async def aheld(self, saver: Any, turn: Turn | AsyncTurn) -> AsyncIterator[Any]:
        """The same in async code."""
        if isinstance(turn, Turn):
            raise InvalidInput("bad_turn", "the graph of a Turn is run by invoke or stream")
        async with AsyncExitStack() as stack:
            if not _on_postgresql(saver):
                await saver.setup()
            if _pooled(saver):
                conn = await stack.enter_async_context(saver.conn.connection())
            else:
                await stack.enter_async_context(saver.lock)
                conn = saver.conn
            if _on_postgresql(saver):
                await stack.enter_async_context(conn.transaction())
            else:
                stack.push_async_callback(conn.rollback)
            await turn.fence(conn)
            yield _moved(saver, conn, type(saver.lock)())


def fence_for(saver: Any, same_database: bool) -> Checked:
    """What holds for this saver.  Raises InvalidInput."""
    if isinstance(saver, InMemorySaver):
        return InMemory()
    if not same_database:
        return Checked()
    if hasattr(saver, "conn") and hasattr(saver, "lock"):
        return InTransaction()
    raise InvalidInput(
        "bad_saver",
        f"{type(saver).__name__} has no transaction that could be fenced: with same_database=False its writes are "
        "checked only",
    )


def _pooled(saver: Any) -> bool:
    return _on_postgresql(saver) and not hasattr(saver.conn, "transaction")


def _on_postgresql(saver: Any) -> bool:
    return hasattr(saver, "pipe")


def _moved(saver: Any, conn: Any, lock: Any) -> Any:
    """The saver on one connection, which is already ours."""
    moved = copy.copy(saver)
    moved.conn, moved.lock = conn, lock
    return moved
