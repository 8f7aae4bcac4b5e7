"""A graph of three nodes that a test can hold or break, and savers of every kind."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from chatlock import AsyncChatlock, AsyncTurn, Chatlock, Limits
from chatlock.middleware.langgraph import FencedSaver, run_turn

POOL: Any = {"min_size": 1, "max_size": 2, "open": False}
CONNECTION: Any = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
QUICK = Limits(beat_ms=20, backoff_ms=1, backoff_max_ms=1)
UNAWARE = Limits(beat_ms=60_000, lease_ms=200_000)
"""A stale turn does not learn of its loss from a heartbeat: the fence alone refuses it."""
in_memory = pytest.mark.parametrize("kind", ["memory"])
on_sqlite = pytest.mark.parametrize("kind", ["sqlite"])


class Log(TypedDict):
    """What was asked, and which nodes ran, in order."""

    log: Annotated[list[str], operator.add]


class Steps:
    """Nodes a, b, c in a row.  `in_b` is called in node b: a gate, or an error."""

    def __init__(self, in_b: Any = None, in_a: Any = None) -> None:
        self.ran: list[str] = []
        self.in_a, self.in_b = in_a, in_b

    async def _arun(self, name: str, inside: Any) -> Log:
        self.ran.append(name)
        if inside is not None:
            await inside()
        return {"log": [name]}

    async def aa(self, state: Log) -> Log:
        return await self._arun("a", self.in_a)

    async def ab(self, state: Log) -> Log:
        return await self._arun("b", self.in_b)

    async def ac(self, state: Log) -> Log:
        return await self._arun("c", None)

    def _run(self, name: str, inside: Any) -> Log:
        self.ran.append(name)
        if inside is not None:
            inside()
        return {"log": [name]}

    def graph(self, saver: Any, *, sync: bool = False) -> Any:
        """a -> b -> c, compiled."""
        builder = StateGraph(Log)
        if sync:
            builder.add_node("a", lambda state: self._run("a", self.in_a))
            builder.add_node("b", lambda state: self._run("b", self.in_b))
            builder.add_node("c", lambda state: self._run("c", None))
        else:
            builder.add_node("a", self.aa)
            builder.add_node("b", self.ab)
            builder.add_node("c", self.ac)
        for before, after in ((START, "a"), ("a", "b"), ("b", "c"), ("c", END)):
            builder.add_edge(before, after)
        return builder.compile(checkpointer=saver)


def asked(messages: list[Any]) -> Log:
    """The input of the graph."""
    return {"log": [message.payload for message in messages]}


def logged(snapshot: Any) -> list[str]:
    """The reply: all that the thread has seen."""
    return list(snapshot.values["log"])


def plain_url(url: str) -> str:
    return url.replace("+psycopg", "").removeprefix("sqlite:///")


@asynccontextmanager
async def async_saver(kind: str, url: str) -> AsyncIterator[Any]:
    """memory, sqlite, postgres (a pool) or postgres-one (one connection, shared)."""
    if kind == "memory":
        yield InMemorySaver()
    elif kind == "sqlite":
        async with AsyncSqliteSaver.from_conn_string(plain_url(url)) as saver:
            yield saver
    elif kind == "postgres-one":
        async with AsyncPostgresSaver.from_conn_string(plain_url(url)) as saver:
            await saver.setup()
            yield saver
    else:
        async with AsyncConnectionPool(plain_url(url), kwargs=CONNECTION, **POOL) as pool:
            saver = AsyncPostgresSaver(pool)
            await saver.setup()
            yield saver


@contextmanager
def sync_saver(kind: str, url: str) -> Iterator[Any]:
    """The same, for sync code."""
    if kind == "memory":
        yield InMemorySaver()
    elif kind == "sqlite":
        with SqliteSaver.from_conn_string(plain_url(url)) as saver:
            yield saver
    elif kind == "postgres-one":
        with PostgresSaver.from_conn_string(plain_url(url)) as saver:
            saver.setup()
            yield saver
    else:
        with ConnectionPool(plain_url(url), kwargs=CONNECTION, **POOL) as pool:
            saver = PostgresSaver(pool)
            saver.setup()
            yield saver


@asynccontextmanager
async def scene(
    kind: str, url: str, tenant: str, limits: Limits = QUICK
) -> AsyncIterator[tuple[AsyncChatlock, FencedSaver]]:
    async with AsyncChatlock(url, tenant=tenant, poller=False, limits=limits) as chat, async_saver(kind, url) as saver:
        yield chat, FencedSaver(saver)


def answering(graph: Any) -> Any:
    """A handler that runs the graph."""

    async def answer(turn: AsyncTurn) -> None:
        await run_turn(turn, graph, asked, logged)

    return answer


def take_over(url: str, turn: Any) -> None:
    """An operator frees the thread, as a sweep does with a turn that went silent."""
    with Chatlock(url, tenant=turn.key.tenant, poller=False) as other:
        assert other.free(turn.key.thread, turn=turn.token, force=True).done
