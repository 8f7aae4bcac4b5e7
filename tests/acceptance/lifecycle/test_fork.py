"""A fork: the child begins with nothing of its parent's, and ends nothing of it."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from chatlock import AlreadyAnswered, Answered, Chatlock, InvalidInput, Limits, Queued, Turn
from tests.acceptance.cases.support import TENANT
from tests.acceptance.life import MESSAGES, Stop, read, states
from tests.support.processes import Child
from tests.support.waiting import SECONDS_MAX, Gate, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Database

    Keep = Callable[[Child], Child]


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
