"""The end of a client while it is in use, and of the loop under it: turns are handed back, waiters are told."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from chatlock import AlreadyAnswered, Answered, AsyncChatlock, AsyncTurn, Chatlock, ClaimLost, Closed, Turn
from tests.acceptance.cases.support import TENANT, Points
from tests.acceptance.life import AT_ONCE, MESSAGES, THREAD, Stop, assert_at_rest, quiet_loop, read, states, until_async
from tests.support.waiting import SECONDS_MAX, Gate, until

if TYPE_CHECKING:
    from tests.support.databases import Database

HELD = 6
WAITING = 12


# -- close under load --------------------------------------------------------------------------------------------------
class Load:
    """Turns that are held in their handlers, and waiters behind them."""

    def __init__(self, chat: Any) -> None:
        self.gates = {f"thread-{n}": Gate() for n in range(HELD)}
        self.told: list[tuple[str, Any]] = []

        @chat.handler()
        def hold(turn: Turn) -> str:
            self.gates[turn.key.thread].hold()
            return "done"

    def assert_told_closed(self) -> None:
        assert [type(told) for _, told in self.told] == [Closed] * (HELD + WAITING), self.told

    def open(self) -> None:
        for gate in self.gates.values():
            gate.open()


def sync_load(chat: Chatlock, load: Load, pool: ThreadPoolExecutor) -> None:
    def ask(thread: str, number: int) -> None:
        try:
            told: Any = chat.submit(thread, "hello", message_id=f"{thread}-{number}", wait_ms=None)
        except BaseException as error:
            told = error
        load.told.append((thread, told))

    for thread, gate in load.gates.items():
        pool.submit(ask, thread, 0)
        gate.wait_entered()
    for number in range(WAITING):
        pool.submit(ask, f"thread-{number % HELD}", 1 + number)
    until(lambda: sum(w.waited is not None for ws in chat._flows.waiters._by_key.values() for w in ws) == WAITING)


@pytest.mark.parametrize("poller", [True, False])
def test_close_under_load_releases_turns_and_tells_waiters(
    database: Database, poller: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = Chatlock(database.url, tenant=TENANT, poller=poller, limits=AT_ONCE)
    load = Load(chat)
    with ThreadPoolExecutor(HELD + WAITING) as pool:
        sync_load(chat, load, pool)
        chat.close()
        for thread in load.gates:
            assert_at_rest(database, thread)
            assert states(database, thread) == ["released"]
            assert {m["disposition"] for m in read(database, MESSAGES, thread)} == {"pending"}
        until(lambda: len(load.told) == WAITING, what="every waiter to be told")
        load.open()
    load.assert_told_closed()
    assert "Traceback" not in capsys.readouterr().err
    with pytest.raises(Closed):
        chat.submit("thread-0", "late")
    chat.close()


def test_async_close_under_load_releases_turns_and_tells_waiters(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        chat = AsyncChatlock(database.url, tenant=TENANT, limits=AT_ONCE)
        load = Load(chat)

        async def ask(thread: str, number: int) -> None:
            try:
                told: Any = await chat.submit(thread, "hello", message_id=f"{thread}-{number}", wait_ms=None)
            except Exception as error:
                told = error
            load.told.append((thread, told))

        async with quiet_loop():
            tasks = []
            for thread, gate in load.gates.items():
                tasks.append(asyncio.ensure_future(ask(thread, 0)))
                await until_async(gate.entered.is_set)
            tasks += [asyncio.ensure_future(ask(f"thread-{n % HELD}", 1 + n)) for n in range(WAITING)]
            by_key = chat._flows.waiters._by_key
            await until_async(lambda: sum(w.waited is not None for ws in by_key.values() for w in ws) == WAITING)
            await chat.close()
            for thread in load.gates:
                assert_at_rest(database, thread)
                assert states(database, thread) == ["released"]
            await until_async(lambda: len(load.told) == WAITING, "every waiter")
            load.open()
            await asyncio.gather(*tasks)
        load.assert_told_closed()
        with pytest.raises(Closed):
            await chat.submit("thread-0", "late")

    asyncio.run(scenario())
    assert "Traceback" not in capsys.readouterr().err


def test_close_lets_turns_end_while_it_drains(database: Database) -> None:
    chat = Chatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE)
    load = Load(chat)
    with ThreadPoolExecutor(HELD + WAITING + 1) as pool:
        sync_load(chat, load, pool)
        closing = pool.submit(chat.close, 600_000)
        until(lambda: len(load.told) == WAITING, what="every waiter to be told at once")
        load.open()
        closing.result(SECONDS_MAX)
    assert sorted(type(told).__name__ for _, told in load.told) == ["Answered"] * HELD + ["Closed"] * WAITING
    for thread in load.gates:
        assert states(database, thread) == ["done"]
        assert_at_rest(database, thread)


def test_close_releases_what_does_not_end_while_it_drains(database: Database) -> None:
    chat = Chatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE)
    with chat.turn("thread", "hello") as turn:
        told: list[str] = []
        turn.on_lost(lambda: told.append("lost"))
        chat.close(drain_ms=1)
        assert told == ["lost"]
        assert turn.lost
        with pytest.raises(ClaimLost):
            turn.check()
    assert_at_rest(database, "thread")
    assert states(database, "thread") == ["released"]


@pytest.mark.parametrize("point", ["windows.begin", "submit_hot.begin", "submit_hot.commit"])
@pytest.mark.parametrize("world", ["sync", "async"])
def test_claim_that_is_under_way_at_the_close_is_released(database: Database, point: str, world: str) -> None:
    """Its handler never runs: the caller is told Closed, the message is stored or was never sent."""
    ran: list[str] = []
    with Chatlock(database.url, tenant=TENANT, poller=False) as before:
        before.submit("thread", "before", wait_ms=0)
        before.cancel("thread", read(database, MESSAGES, "thread")[0]["message_id"])

    def sync_world() -> None:
        chat = Chatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE)
        chat.handler()(lambda turn: ran.append("ran"))
        stop = Stop(chat, name=point)
        with ThreadPoolExecutor(2) as pool:
            asked = pool.submit(chat.submit, "thread", "hello", message_id="id")
            stop.gate.wait_entered()
            closing = pool.submit(chat.close)
            until(lambda: chat._executor._gate._closer is not None, what="the close")
            stop.gate.open()
            closing.result(SECONDS_MAX)
            assert isinstance(asked.exception(SECONDS_MAX), Closed)

    async def async_world() -> None:
        chat = AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE)
        chat.handler()(lambda turn: ran.append("ran"))
        stop = Stop(chat, name=point)
        asked = asyncio.ensure_future(chat.submit("thread", "hello", message_id="id"))
        await until_async(stop.gate.entered.is_set)
        closing = asyncio.ensure_future(chat.close())
        await until_async(lambda: chat._executor._gate._closer is not None, "the close")
        stop.gate.open()
        await closing
        with pytest.raises(Closed):
            await asked

    sync_world() if world == "sync" else asyncio.run(async_world())
    assert not ran
    assert_at_rest(database, "thread")
    with Chatlock(database.url, tenant=TENANT, poller=False) as after:
        after.handler()(lambda turn: "done")
        assert isinstance(after.submit("thread", "hello", message_id="id"), Answered)


def test_operation_that_retries_at_the_close_gives_up(sqlite_database: Database) -> None:
    """It neither goes on for the busy limit nor opens the pool again."""
    chat = Chatlock(sqlite_database.url, tenant=TENANT, poller=False)
    chat.submit("thread", "before", wait_ms=0)
    points = Points(chat)
    holder = sqlite_database.connect()
    holder.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(chat.submit, "thread", "hello", wait_ms=0)
        until(lambda: points.passed.count("submit_hot.begin") > 3, what="retries")
        chat.close()
        assert isinstance(asked.exception(SECONDS_MAX), Closed)
    holder.execute("ROLLBACK")
    assert chat._executor._engine is None


def test_close_while_the_database_is_away_ends(pg_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turns cannot be released: their leases free them.  The close neither hangs nor raises."""
    chat = Chatlock(pg_database.url, tenant=TENANT, limits=AT_ONCE)
    turns = [chat.begin(f"thread-{n}", "hello") for n in range(HELD)]
    monkeypatch.setattr("chatlock.executor.RECONNECTS_MAX", 0)
    monkeypatch.setattr("chatlock.dialects.PG_SESSION", "SELECT nothing FROM nowhere")
    read(
        pg_database,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        " AND datname = current_database()",
    )
    chat.close()
    assert all(isinstance(turn, Turn) and turn.lost for turn in turns)


def test_error_in_one_release_does_not_stop_the_others(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = Chatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE)
    turns = [chat.begin(f"thread-{n}", "hello") for n in range(3)]
    transaction = chat._executor.transaction

    def broken(name: str, op: Any) -> Any:
        if name == "release" and not failed:
            failed.append(name)
            raise RuntimeError("forced by the test")
        return transaction(name, op)

    failed: list[str] = []
    monkeypatch.setattr(chat._executor, "transaction", broken)
    chat.close()
    assert turns
    assert sorted(states(database, f"thread-{n}")[0] for n in range(3)) == ["released", "released", "running"]


def test_second_close_and_close_inside_a_handler_end(database: Database) -> None:
    chat = Chatlock(database.url, tenant=TENANT, limits=AT_ONCE)

    @chat.handler()
    def close_it(turn: Turn) -> str:
        chat.close()
        return "done"

    with pytest.raises(Closed):
        chat.submit("thread", "hello")
    chat.close()
    assert_at_rest(database, "thread")


# -- the event loop ends before the client -----------------------------------------------------------------------------
def test_turn_started_on_a_loop_that_closes_before_it_begins_is_released(database: Database) -> None:
    """The poller's turn was handed to a loop that never ran it: its claim is released and its place is free again."""
    chat = AsyncChatlock(database.url, tenant=TENANT, poller=False, turns_max=1, limits=AT_ONCE)
    ran: list[str] = []

    @chat.handler()
    async def answer(turn: AsyncTurn) -> str:
        ran.append(turn.key.thread)
        return "done"

    async def store() -> None:
        await chat.submit("thread", "hello", message_id="id", agent="nobody's", wait_ms=0)
        chat.handler("nobody's")(answer)
        granted = await asyncio.to_thread(lambda: chat._sweep.claim_due(chat._agents(), 1))
        assert len(granted) == 1
        chat._start(granted[0])  # begins with the loop's next step, of which there is none

    async def run_rest() -> None:
        await chat.status("thread", "id")
        assert chat._capacity() == 1
        await until_async(lambda: read(database, THREAD, "thread")[0]["status"] == "idle", "the release")
        assert_at_rest(database, "thread")
        assert (await chat.sweep_once()).turns == 1
        await chat.close()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(store())
    loop.close()
    assert chat._capacity() == 0, "no loop runs"
    assert not ran
    asyncio.run(run_rest())
    assert ran == ["thread"]


def test_turn_cancelled_before_its_first_step_is_released(database: Database) -> None:
    chat = AsyncChatlock(database.url, tenant=TENANT, poller=False, turns_max=1, limits=AT_ONCE)

    async def scenario() -> None:
        await chat.submit("thread", "hello", message_id="id", wait_ms=0)
        chat.handler()(lambda turn: "done")
        (granted,) = await asyncio.to_thread(lambda: chat._sweep.claim_due(chat._agents(), 1))
        before = asyncio.all_tasks()
        chat._start(granted)
        # The loop calls this right after it has made the task, and before the task's first step.
        asyncio.get_running_loop().call_soon(lambda: [task.cancel() for task in asyncio.all_tasks() - before])
        await until_async(lambda: chat._capacity() == 1, "the place")
        assert_at_rest(database, "thread")
        assert isinstance(await chat.submit("thread", "hello", message_id="id"), Answered)
        await chat.close()

    asyncio.run(scenario())


def test_client_is_used_from_one_loop_after_another(database: Database) -> None:
    chat = AsyncChatlock(database.url, tenant=TENANT, limits=AT_ONCE)

    @chat.handler()
    async def answer(turn: AsyncTurn) -> str:
        return "done"

    async def ask(number: int) -> None:
        assert isinstance(await chat.submit("thread", "hello", message_id=f"id-{number}"), Answered | AlreadyAnswered)

    for number in range(3):
        asyncio.run(ask(number))
    asyncio.run(chat.close())
