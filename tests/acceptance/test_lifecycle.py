"""The end of a client, a process and a fork: running turns are handed back, waiters are told, nothing is printed."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from chatlock import (
    AlreadyAnswered,
    Answered,
    AsyncChatlock,
    AsyncTurn,
    Chatlock,
    ClaimLost,
    Closed,
    InvalidInput,
    Limits,
    Queued,
    Turn,
)
from tests.acceptance.cases.support import TENANT, Points
from tests.acceptance.life import (
    AT_ONCE,
    MESSAGES,
    THREAD,
    TURNS,
    Stop,
    assert_at_rest,
    quiet_loop,
    read,
    until_async,
)
from tests.acceptance.programs import Program, Programs
from tests.support.processes import Child
from tests.support.waiting import SECONDS_MAX, Gate, blocked_backends, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.databases import Database

    Keep = Callable[[Child], Child]
    Run = Callable[..., Program]

HELD = 6
WAITING = 12


SERVING = ("chatlock-poller", "chatlock-heart", "chatlock-look")


def chatlock_os_threads() -> list[str]:
    """The OS threads of chatlock that serve it; a handler's own goes on as long as the handler does."""
    return [os_thread.name for os_thread in threading.enumerate() if os_thread.name.startswith(SERVING)]


@pytest.fixture(autouse=True)
def no_os_thread_is_left() -> Iterator[None]:
    before = chatlock_os_threads()
    yield
    until(lambda: chatlock_os_threads() == before, what="the end of chatlock's OS threads")


def states(database: Database, thread: str) -> list[str]:
    return [turn["state"] for turn in read(database, TURNS, thread)]


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


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with Programs(tmp_path_factory.mktemp("programs")) as started:
        yield started


@pytest.fixture
def program(programs: Programs) -> Iterator[Run]:
    """Runs a program; it has ended when the test has."""
    started: list[Program] = []

    def run(text: str, *arguments: str) -> Program:
        started.append(programs.start(text, *arguments))
        return started[-1]

    yield run
    for each in started:
        each.dispose()


# -- the end of a process ----------------------------------------------------------------------------------------------
PROGRAM = """
from chatlock import AsyncChatlock, Chatlock, Closed, Limits
url = sys.argv[1]
limits = Limits(lease_ms=600_000, sweep_ms=20)

def say(text):
    print(text, flush=True)

def stop_at(chat, point):
    def passing(name):
        if name == point:
            say("standing")
            until = time.monotonic() + 20
            while time.monotonic() < until:  # as a slow statement: the signal comes in the middle
                time.sleep(0.01)  # bounded poll
    chat._executor.points = passing
"""
PLAYS = {
    "sync_handler": """
chat = Chatlock(url, tenant="t", limits=limits)
@chat.handler()
def hold(turn):
    say("standing")
    time.sleep(20)  # interrupted
chat.submit("thread", "hello")
""",
    "sync_turn": """
chat = Chatlock(url, tenant="t", limits=limits)
with chat.turn("thread", "hello") as turn:
    say("standing")
    time.sleep(20)  # interrupted
""",
    "sync_begin": """
chat = Chatlock(url, tenant="t", limits=limits)
turn = chat.begin("thread", "hello")
say("standing")
time.sleep(20)  # interrupted
""",
    "sync_submit": """
chat = Chatlock(url, tenant="t", limits=limits)
chat.handler()(lambda turn: "done")
stop_at(chat, "submit_hot.commit")
chat.submit("thread", "hello")
""",
    "sync_wait": """
chat = Chatlock(url, tenant="t", limits=limits)
import contextvars
held = contextvars.copy_context().run(chat.begin, "thread", "hello")  # else it would not wait
chat.handler()(lambda turn: "done")
def watch():
    while not any(w.waited for ws in chat._flows.waiters._by_key.values() for w in ws):
        time.sleep(0.001)  # bounded poll
    say("standing")
threading.Thread(target=watch, daemon=True).start()
chat.submit("thread", "second", wait_ms=None)
""",
    "async_handler": """
async def main():
    async with AsyncChatlock(url, tenant="t", limits=limits) as chat:
        @chat.handler()
        async def hold(turn):
            say("standing")
            await asyncio.sleep(20)  # interrupted
        await chat.submit("thread", "hello")
asyncio.run(main())
""",
    "async_sync_handler": """
async def main():
    chat = AsyncChatlock(url, tenant="t", limits=limits)
    @chat.handler()
    def hold(turn):
        say("standing")
        time.sleep(20)  # interrupted
    await chat.submit("thread", "hello")
asyncio.run(main())
""",
    "async_poller": """
async def main():
    chat = AsyncChatlock(url, tenant="t", limits=limits)
    await chat.submit("thread", "hello", wait_ms=0)
    @chat.handler()
    async def hold(turn):
        say("standing")
        await asyncio.sleep(20)  # interrupted
    await asyncio.sleep(20)  # interrupted
asyncio.run(main())
""",
    "sync_poller": """
chat = Chatlock(url, tenant="t", limits=limits)
chat.submit("thread", "hello", wait_ms=0)
@chat.handler()
def hold(turn):
    say("standing")
    time.sleep(20)  # interrupted
time.sleep(20)  # interrupted
""",
    "sync_stream": """
chat = Chatlock(url, tenant="t", limits=limits)
@chat.handler()
async def chunks(turn):
    yield "one"
    await asyncio.sleep(20)  # interrupted
for event in chat.stream("thread", "hello"):
    say("standing")
""",
}
UNSENT = {"sync_submit"}
EXITS = {
    "live_turn": """
chat = Chatlock(url, tenant="t", limits=limits)
turn = chat.begin("thread", "hello")
""",
    "live_turn_of_the_poller": """
chat = Chatlock(url, tenant="t", limits=limits)
chat.submit("thread", "hello", wait_ms=0)
entered = threading.Event()
@chat.handler()
def hold(turn):
    entered.set()
    time.sleep(20)  # interrupted
entered.wait(20)
""",
    "daemon_in_submit": """
chat = Chatlock(url, tenant="t", limits=limits)
entered = threading.Event()
@chat.handler()
def hold(turn):
    entered.set()
    time.sleep(20)  # interrupted
threading.Thread(target=chat.submit, args=("thread", "hello"), daemon=True).start()
entered.wait(20)
""",
    "waiters": """
chat = Chatlock(url, tenant="t", limits=limits)
turn = chat.begin("thread", "hello")
def wait():
    try:
        chat.submit("thread", "more", wait_ms=None)
    except Closed:
        pass
for number in range(5):
    threading.Thread(target=wait, daemon=True).start()
while sum(w.waited is not None for ws in list(chat._flows.waiters._by_key.values()) for w in list(ws)) < 5:
    time.sleep(0.001)  # bounded poll
""",
    "loop_closed_already": """
chat = AsyncChatlock(url, tenant="t", limits=limits)
kept = []
async def main():
    kept.append(await chat.begin("thread", "hello"))
asyncio.run(main())
""",
    "loop_closed_under_a_turn": """
chat = AsyncChatlock(url, tenant="t", limits=limits)
async def hold():
    async with chat.turn("thread", "hello"):
        await asyncio.sleep(20)  # interrupted
async def main():
    task = asyncio.ensure_future(hold())
    while not chat._flows.live.turns:
        await asyncio.sleep(0)
asyncio.run(main())
""",
    "loop_still_running": """
chat = AsyncChatlock(url, tenant="t", limits=limits)
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
async def hold():
    async with chat.turn("thread", "hello"):
        await asyncio.sleep(20)  # interrupted
asyncio.run_coroutine_threadsafe(hold(), loop)
while not chat._flows.live.turns:
    time.sleep(0.001)  # bounded poll
""",
    "sys_exit_in_a_turn": """
chat = Chatlock(url, tenant="t", limits=limits)
with chat.turn("thread", "hello"):
    sys.exit(3)
""",
    "error_in_a_turn_of_another_thread": """
chat = Chatlock(url, tenant="t", limits=limits)
turn = chat.begin("thread", "hello")
sys.exit(3)
""",
}


# CPython forgets that it was a Ctrl-C, and exits with 1, if anything was exec'd at its end.
INTERRUPTED = (130, -signal.SIGINT, 1)


def assert_left_well(database: Database, process: Program) -> None:
    """Released at once, uncharged, due; chatlock printed nothing."""
    assert_at_rest(database, "thread")
    assert set(states(database, "thread")) <= {"released"}, process.text
    for noise in ("Exception in thread", "Exception ignored", "never awaited", "never retrieved", "Fatal"):
        assert noise not in process.text, process.text


@pytest.mark.parametrize("play", PLAYS)
def test_ctrl_c_releases_and_exits(database: Database, program: Run, play: str) -> None:
    process = program(PROGRAM + PLAYS[play], database.url)
    process.wait_for("standing")
    process.send(signal.SIGINT)
    assert process.wait() in INTERRUPTED, process.text
    assert "\nKeyboardInterrupt\n" in process.text
    assert_left_well(database, process)
    with Chatlock(database.url, tenant=TENANT, poller=False) as chat:
        chat.handler()(lambda turn: "done")
        chat.sweep_once()
        assert {m["disposition"] for m in read(database, MESSAGES, "thread")} == (
            set() if play in UNSENT else {"answered"}
        )
        assert chat.verify().ok


@pytest.mark.parametrize("play", EXITS)
def test_plain_exit_releases_and_is_silent(database: Database, program: Run, play: str) -> None:
    process = program(PROGRAM + EXITS[play], database.url)
    assert process.wait() == (3 if "sys.exit(3)" in EXITS[play] else 0), process.text
    assert process.text == "", process.text
    assert_left_well(database, process)


def test_sigterm_ends_at_once_and_the_lease_frees(database: Database, program: Run) -> None:
    """The default of the signal leaves Python no time; nothing is lost all the same."""
    process = program(PROGRAM + PLAYS["sync_handler"], database.url)
    process.wait_for("standing")
    process.send(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    assert states(database, "thread") == ["running"]
    read(database, "UPDATE chatlock_threads SET expires_at = 0 WHERE thread_id = ? RETURNING token", "thread")
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=Limits(beat_ms=1, backoff_ms=0)) as chat:
        chat.handler()(lambda turn: "done")
        chat._sweep._gap_s = 0
        assert chat.sweep_once().reclaimed + chat.sweep_once().reclaimed == 1
        chat.sweep_once()
        assert states(database, "thread") == ["reclaimed", "done"]


def test_second_ctrl_c_leaves_at_once(pg_database: Database, program: Run) -> None:
    """The release waits for a row that another transaction holds; whoever interrupts again does not wait for it."""
    process = program(PROGRAM + PLAYS["sync_begin"], pg_database.url)
    process.wait_for("standing")
    holder = pg_database.connect()
    holder.execute("BEGIN")
    holder.execute("SELECT 1 FROM chatlock_threads FOR UPDATE")
    process.send(signal.SIGINT)
    until(lambda: blocked_backends(holder), what="the release that waits")
    process.send(signal.SIGINT)
    assert process.wait() in INTERRUPTED, process.text
    holder.execute("ROLLBACK")
    assert states(pg_database, "thread") == ["running"]


# -- fork --------------------------------------------------------------------------------------------------------------
def exit_code_of(work: Callable[[], object]) -> int:
    """Forks here and now, runs `work` in the child; its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            logging.getLogger("tests").exception("in the child")
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forking(database_url: str) -> None:
    """In a child process: forks with everything in use, and checks both sides."""
    chat = Chatlock(database_url, tenant=TENANT, limits=Limits(beat_ms=20, lease_ms=60_000), pool_size=2)
    gates = {"parents": Gate()}

    @chat.handler()
    def answer(turn: Turn) -> str:
        if turn.key.thread in gates:
            gates[turn.key.thread].hold()
        return str(os.getpid())

    stop = threading.Event()
    failed: list[BaseException] = []

    def work(name: str) -> None:
        number = 0
        try:
            while not stop.is_set():
                number += 1
                chat.submit(name, "hello", message_id=f"{name}-{number}")
        except BaseException as error:
            failed.append(error)

    busy = [threading.Thread(target=work, args=(f"busy-{n}",)) for n in range(4)]
    held = threading.Thread(target=chat.submit, args=("parents", "hello"))
    for os_thread in (*busy, held):
        os_thread.start()
    gates["parents"].wait_entered()
    with chat.turn("mine", "hello") as mine:
        for number in range(10):
            assert exit_code_of(lambda number=number, mine=mine: in_the_fork(chat, number, mine)) == 0
        mine.finish("done")
    stop.set()
    gates["parents"].open()
    for os_thread in (*busy, held):
        os_thread.join()
    assert not failed, failed
    assert chat.verify().ok
    chat.close()


def in_the_fork(chat: Chatlock, number: int, inherited: Turn) -> None:
    """Fresh connections, heart, waiters and poller; the parent's turn is not this process's to end."""
    chat.handler("child")(lambda turn: str(os.getpid()))
    first = chat.submit(f"child-{number}", "hello", agent="child")
    assert isinstance(first, Answered), first
    assert first.reply == str(os.getpid())
    with chat.turn(f"beaten-{number}", "hello") as turn:
        until(lambda: turn._core._valid_until > turn._core.claim.asked_at + 60.02, what="a beat in the child")
        waiting = ThreadPoolExecutor(1).submit(chat.submit, f"beaten-{number}", "second", agent="child")
        until(lambda: len(chat._flows.waiters), what="a waiter in the child")
        turn.finish("done")
        assert isinstance(waiting.result(SECONDS_MAX), Answered | AlreadyAnswered)
    chat.submit(f"polled-{number}", "hello", agent="late", wait_ms=0)
    chat.handler("late")(lambda turn: "by the poller")
    until(lambda: not isinstance(chat.submit(f"polled-{number}", "hello", message_id="x"), Queued), what="the poller")
    with pytest.raises(InvalidInput, match="process that was forked"):
        inherited.finish("by the child")
    assert chat._flows.store.owner == chat._flows.windows.owner
    assert f":{os.getpid()}:" in chat._flows.store.owner
    chat.close()


def test_fork_with_everything_in_use(database: Database, child: Keep) -> None:
    process = child(Child.fork(lambda: forking(database.url)))
    assert process.wait(60) == 0, process.text
    assert process.text == "", process.text
    if database.kind == "sqlite":
        assert read(database, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]
    assert "pending" not in {m["disposition"] for m in read(database, "SELECT disposition FROM chatlock_messages")}


def test_fork_in_the_middle_of_a_write_leaves_the_child_a_free_file(sqlite_database: Database, child: Keep) -> None:
    """SQLite's locks belong to a process, its record of them is memory: a copy would lock the child out for ever."""

    def work() -> None:
        chat = Chatlock(sqlite_database.url, tenant=TENANT, poller=False)
        chat.submit("thread", "before", wait_ms=0)
        stop = Stop(chat, name="submit_hot.commit")
        writing = threading.Thread(target=lambda: chat.submit("thread", "parent", wait_ms=0))
        writing.start()
        stop.gate.wait_entered()
        opening = threading.Timer(0.2, stop.gate.open)  # the fork waits for the write, which waits for this
        opening.start()
        assert exit_code_of(lambda: chat.submit("thread", "child", wait_ms=0)) == 0
        writing.join()
        chat.submit("thread", "after", wait_ms=0)
        chat.close()

    process = child(Child.fork(work))
    assert process.wait(60) == 0, process.text
    assert len(read(sqlite_database, MESSAGES, "thread")) == 4
    assert read(sqlite_database, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]


def test_child_that_exits_inside_its_parents_turn_does_not_end_it(database: Database, child: Keep) -> None:
    """A plain exit unwinds the child's copy of the block."""

    def work() -> None:
        chat = Chatlock(database.url, tenant=TENANT, poller=False)
        try:
            with chat.turn("thread", "hello") as turn:
                pid = os.fork()
                if pid == 0:
                    raise SystemExit(0)
                os.waitpid(pid, 0)
                turn.finish("done")
        except SystemExit:
            os._exit(0)
        chat.close()

    process = child(Child.fork(work))
    assert process.wait(60) == 0, process.text
    assert states(database, "thread") == ["done"]
