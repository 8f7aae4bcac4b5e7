"""One client object in many processes, OS threads and event loops: it works, and no reply goes to another request."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from chatlock import AlreadyAnswered, AsyncChatlock, Chatlock, Closed, Queued
from chatlock.heart import Heart
from tests.acceptance.cases import preload
from tests.acceptance.cases.preload import CHILDREN, SCENARIOS
from tests.acceptance.cases.support import (
    SECONDS_MAX,
    TENANT,
    assert_invariants,
    message_rows,
    quiesce,
    rows,
    thread_row,
    until,
)
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable

    from chatlock import AsyncTurn
    from tests.acceptance.cases.support import Agent, Callers
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]
    Keep = Callable[[Child], Child]

REQUESTS = 10


# -- B54 (c) and B55: forks --------------------------------------------------------------------------------------------
def test_clients_made_before_a_fork_work_in_every_process(database: Database, client: Client, child: Keep) -> None:
    """B54, B55: the children open connections of their own; nothing is shared, nothing hangs, the file is sound.

    Forked before the clients' first use, after it, in the middle of an operation, and with every lock held.
    """
    program = child(Child.fork(lambda: preload.run_all(database.url)))
    assert program.wait() == 0, program.text
    told = Counter(line.partition(":")[0] for line in program.text.splitlines())
    assert told == dict.fromkeys(SCENARIOS, CHILDREN + 1), program.text
    if database.kind == "sqlite":
        assert rows(database, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]
    assert not rows(database, "SELECT 1 FROM chatlock_messages WHERE disposition <> 'answered'")
    assert_invariants(database, client(database))


def test_lock_that_stays_locked_in_the_child_is_found(
    sqlite_database: Database, child: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: one part of the clients that does not start afresh."""
    monkeypatch.setattr(Heart, "after_fork", lambda self: None)
    program = child(Child.fork(lambda: preload.under_locks(preload.Program(sqlite_database.url))))
    assert program.wait() == 1
    assert "a lock of the parent's is locked in the child" in program.text


# -- B55: event loops --------------------------------------------------------------------------------------------------
def answering(database: Database, **options: Any) -> AsyncChatlock:
    """A client whose handler answers each message by its payload."""
    chat = AsyncChatlock(database.url, **{"tenant": TENANT, "poller": False, **options})

    @chat.handler()
    async def answer(turn: AsyncTurn) -> list[str]:
        await asyncio.sleep(0)
        return [message.payload for message in turn.messages]

    return chat


async def ask(chat: AsyncChatlock, who: str) -> None:
    """Many requests at once, to threads of its own and to one that all share; each reply is that of its request."""
    payloads = [f"{who} {number}" for number in range(REQUESTS)]
    own = await asyncio.gather(*(chat.submit(payload, payload) for payload in payloads))
    assert [outcome.reply for outcome in own] == [[payload] for payload in payloads]
    for payload in payloads[:5]:
        outcome: Any = await chat.submit("shared", payload)
        assert payload in outcome.reply


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_client_serves_one_loop_after_another(database: Database, client: Client, run: Any) -> None:
    """B55: asyncio.run twice in a row over the same module-level client."""
    chat = answering(database)
    for who in ("first loop", "second loop"):
        run(ask(chat, who))
    run(chat.close())
    assert_invariants(database, client(database))


def test_client_serves_a_loop_in_each_of_two_os_threads(database: Database, client: Client, callers: Callers) -> None:
    """B55: both loops at once; the second is uvloop's."""
    chat = answering(database)
    meet = threading.Barrier(2)

    def work(run: Any, who: str) -> None:
        async def both() -> None:
            meet.wait(SECONDS_MAX)
            await ask(chat, who)

        run(both())

    for done in [callers.call(work, asyncio.run, "one"), callers.call(work, uvloop.run, "two")]:
        done.result(SECONDS_MAX)
    asyncio.run(chat.close())
    assert_invariants(database, client(database))


def test_poller_serves_the_loop_that_is_there(database: Database, client: Client) -> None:
    """B55: a message left behind by a loop that has ended is answered by the poller's task on the next one."""
    store = client(database)
    chat = answering(database, poller=True)
    asyncio.run(ask(chat, "first loop"))
    assert isinstance(store.submit("left", "left", message_id="left", wait_ms=0), Queued)

    async def second_loop() -> None:
        await ask(chat, "second loop")
        await asyncio.to_thread(until, lambda: not isinstance(store.status("left", "left"), Queued))
        await chat.close()

    asyncio.run(second_loop())
    assert store.status("left", "left") == AlreadyAnswered(message_id="left", seq=1, reply=["left"], turn=1)
    assert_invariants(database, store)


# -- B55: close while someone waits ------------------------------------------------------------------------------------
def test_close_tells_a_waiter_in_sync_code(database: Database, serving: Client, agent: Agent, callers: Callers) -> None:
    """B55: the waiter gets Closed; the turn that runs is handed back, and both messages are answered later."""
    chat, other = serving(database), serving(database)
    gate = agent.hold("thread")
    first = callers.submit(chat, "thread", "one", message_id="m1")
    gate.wait_entered()
    second = callers.submit(chat, "thread", "two", message_id="m2", wait_ms=None)
    until(lambda: len(message_rows(database, "thread")) == 2, what="m2")
    chat.close()
    with pytest.raises(Closed):
        second.result(SECONDS_MAX)
    assert thread_row(database, "thread")["status"] == "idle"
    gate.open()
    with pytest.raises(Closed):
        first.result(SECONDS_MAX)
    with pytest.raises(Closed):
        chat.submit("thread", "three")
    quiesce(other, database)
    assert [message["disposition"] for message in message_rows(database, "thread")] == ["answered"] * 2
    assert_invariants(database, other)


@pytest.mark.parametrize("closer", ["the same loop", "another loop"])
def test_close_tells_a_waiter_on_a_loop(database: Database, serving: Client, closer: str) -> None:
    """B55: whoever closes, the waiting task gets Closed."""
    other = serving(database)

    async def scenario() -> None:
        chat = AsyncChatlock(database.url, tenant=TENANT, poller=False)
        inside, opened = asyncio.Event(), asyncio.Event()

        @chat.handler()
        async def answer(turn: AsyncTurn) -> str:
            inside.set()
            await opened.wait()
            return "late"

        first = asyncio.create_task(chat.submit("thread", "one", message_id="m1"))
        await inside.wait()
        second = asyncio.create_task(chat.submit("thread", "two", message_id="m2", wait_ms=None))
        await asyncio.to_thread(until, lambda: len(message_rows(database, "thread")) == 2, what="m2")
        if closer == "the same loop":
            await chat.close()
        else:
            await asyncio.to_thread(lambda: asyncio.run(chat.close()))
        with pytest.raises(Closed):
            await second
        opened.set()
        with pytest.raises(Closed):
            await first

    asyncio.run(asyncio.wait_for(scenario(), SECONDS_MAX))
    assert thread_row(database, "thread")["status"] == "idle"
    quiesce(other, database)
    assert_invariants(database, other)
