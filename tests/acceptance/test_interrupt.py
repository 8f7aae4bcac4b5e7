"""Ctrl-C in sync code, wherever it stands, hands the claim back at once, uncharged, and leaves nothing behind."""

from __future__ import annotations

import dis
import itertools
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import chatlock
from chatlock import AlreadyAnswered, Answered, Chatlock
from tests.acceptance.cases.support import TENANT
from tests.acceptance.life import AT_ONCE, TURNS, Stop, assert_at_rest, assert_nothing_kept, read
from tests.support import scaled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from tests.support.databases import Database


def sync_submit(chat: Chatlock, thread: str) -> None:
    chat.submit(thread, "hello", message_id="id", wait_ms=0)


def sync_turn(chat: Chatlock, thread: str) -> None:
    with chat.turn(thread, "hello", message_id="id", wait_ms=0) as held:
        held.mark("noted")
        held.finish("done")


SYNC_PLAYS = {"submit": sync_submit, "turn": sync_turn}


@pytest.fixture
def sync_chat(database: Database) -> Iterator[Chatlock]:
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat:
        chat.handler()(lambda held: "done")
        sync_submit(chat, "before")
        yield chat


def assert_interrupted_well(chat: Chatlock, database: Database, thread: str) -> None:
    """The claim was handed back, and the same client goes on."""
    chat._executor.points = None
    assert_nothing_kept(chat)
    assert chat._executor._gate._inside == 0
    assert_at_rest(database, thread)
    outcome = chat.submit(thread, "hello", message_id="id", wait_ms=0)
    assert isinstance(outcome, Answered | AlreadyAnswered), outcome


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupted_sync_handler_releases_its_turn(
    sync_chat: Chatlock, database: Database, error: type[BaseException]
) -> None:
    @sync_chat.handler("interrupted")
    def interrupted(held: Any) -> None:
        raise error

    with pytest.raises(error):
        sync_chat.submit("thread", "hello", message_id="id", agent="interrupted")
    assert [turn["state"] for turn in read(database, TURNS, "thread")] == ["released"]
    assert_interrupted_well(sync_chat, database, "thread")


@pytest.mark.parametrize("play", SYNC_PLAYS)
def test_interrupt_at_every_point_releases(sync_chat: Chatlock, database: Database, play: str) -> None:
    call = SYNC_PLAYS[play]
    dry = Stop(sync_chat)
    call(sync_chat, "dry")
    for number, name in enumerate(dry.passed):
        thread, passed = f"thread-{number}", itertools.count()

        def interrupt(point: str, number: int = number, passed: Iterator[int] = passed) -> None:
            if next(passed) == number:
                raise KeyboardInterrupt

        sync_chat._executor.points = interrupt
        with pytest.raises(KeyboardInterrupt):
            call(sync_chat, thread)
        assert next(passed) >= number, name
        assert_interrupted_well(sync_chat, database, thread)
    assert sync_chat.verify().ok


# Where CPython looks whether a signal came: after a call, at the start of a function, and in a loop.
LOOKS = {
    dis.opmap[name] for name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD") if name in dis.opmap
}
PACKAGE = str(Path(chatlock.__file__).parent)


class CtrlC:
    """Raises KeyboardInterrupt at the n-th place inside chatlock where the interpreter looks for signals."""

    def __init__(self, number: int) -> None:
        self.number, self.seen = number, 0
        self._last: dict[FrameType, int] = {}

    def __enter__(self) -> CtrlC:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)
        self._last.clear()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            last = self._last.get(frame)
            self._last[frame] = frame.f_lasti
            if last is not None and frame.f_code.co_code[last] in LOOKS:
                self.seen += 1
                if self.seen - 1 == self.number:
                    raise KeyboardInterrupt
        elif event == "return":
            self._last.pop(frame, None)
        return self._trace


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("play", SYNC_PLAYS)
def test_ctrl_c_anywhere_in_chatlock_releases(sqlite_database: Database, play: str) -> None:
    """Not only where a call waits: between any two instructions between which the interpreter lets a signal in."""
    call = SYNC_PLAYS[play]
    with Chatlock(sqlite_database.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat:
        chat.handler()(lambda held: "done")
        sync_submit(chat, "before")
        with CtrlC(-1) as dry:
            call(chat, "dry")
        assert dry.seen > 200
        for number in range(0, dry.seen, scaled(9, 1)):
            with CtrlC(number) as interrupt, suppress(KeyboardInterrupt):
                call(chat, f"thread-{number}")
            assert interrupt.seen > number
            assert_interrupted_well(chat, sqlite_database, f"thread-{number}")
        assert chat.verify().ok
