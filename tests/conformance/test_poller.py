"""The in-process poller: it starts what is due here, within its capacity, and goes on whatever happens."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from chatlock import AlreadyAnswered, AsyncChatlock, Chatlock, Dead, Limits, Queued
from chatlock.errors import StoreUnavailable
from tests.conformance import rows
from tests.conformance.conftest import BOTH, NewChat
from tests.support.databases import Database
from tests.support.waiting import POLL_SECONDS, SECONDS_MAX, Gate, until

pytestmark = BOTH

QUICK = Limits(sweep_ms=20)


def polled(new_chat: NewChat, **options: Any) -> Any:
    """A client with a poller that sweeps every 20 ms."""
    return new_chat(poller=True, **({"limits": QUICK} | options))


def answered(chat: Any, thread: str, message_id: str) -> bool:
    return isinstance(chat.status(thread, message_id), AlreadyAnswered)


def test_poller_runs_what_another_client_stored(new_chat: NewChat) -> None:
    worker, front = polled(new_chat), new_chat()
    worker.handler()(lambda turn: turn.messages[0].payload)
    front.submit("c1", "hello", message_id="m1", wait_ms=0)
    worker.status("c1", "m1")
    until(lambda: answered(front, "c1", "m1"))
    assert front.status("c1", "m1").reply == "hello"


def test_poller_begins_with_the_first_use(new_chat: NewChat) -> None:
    worker = polled(new_chat)
    assert worker._poller._os_thread is None
    worker.status("c1", "m1")
    assert worker._poller._os_thread is not None


def test_client_without_a_poller_runs_nothing_by_itself(new_chat: NewChat) -> None:
    chat = new_chat(poller=False)
    chat.handler()(lambda turn: "ok")
    assert chat._poller is None


def test_message_stored_without_waiting_is_run_at_once_by_the_clients_own_poller(new_chat: NewChat) -> None:
    chat = polled(new_chat, limits=Limits(sweep_ms=3_600_000))
    chat.status("c1", "m1")
    chat.submit("c1", "hello", message_id="m1", agent="mine", wait_ms=0)
    chat.handler("mine")(lambda turn: "ok")
    chat.submit("c1", "more", message_id="m2", agent="mine", wait_ms=0)
    until(lambda: answered(chat, "c1", "m1"))


def test_poller_starts_no_more_turns_than_its_capacity(new_chat: NewChat) -> None:
    worker, front = polled(new_chat, turns_max=2), new_chat()
    gates = {f"c{n}": Gate() for n in range(4)}
    worker.handler()(lambda turn: gates[turn.key.thread].hold())
    for thread in gates:
        front.submit(thread, "hello", message_id="m1", wait_ms=0)
    worker.status("c0", "m1")
    entered = lambda: [thread for thread, gate in gates.items() if gate.entered.is_set()]  # noqa: E731
    until(lambda: len(entered()) == 2)
    sweeps: list[str] = []
    worker._executor.points = sweeps.append
    until(lambda: sweeps.count("observe.begin") >= 3)
    assert len(entered()) == 2
    for gate in gates.values():
        gate.open()
    until(lambda: all(answered(front, thread, "m1") for thread in gates))


def test_poller_leaves_agents_of_others_alone(new_chat: NewChat) -> None:
    worker, front = polled(new_chat), new_chat()
    worker.handler("mine")(lambda turn: "ok")
    front.submit("theirs", "hello", message_id="m1", agent="other", wait_ms=0)
    front.submit("mine", "hello", message_id="m1", agent="mine", wait_ms=0)
    worker.status("mine", "m1")
    until(lambda: answered(front, "mine", "m1"))
    assert isinstance(front.status("theirs", "m1"), Queued)


def test_poller_goes_on_after_an_error(new_chat: NewChat, caplog: pytest.LogCaptureFixture) -> None:
    worker, front = polled(new_chat), new_chat()
    worker.handler()(lambda turn: "ok")
    reclaim, errors = worker._sweep.reclaim_stale, [RuntimeError("a defect"), StoreUnavailable("away")]

    def failing() -> int:
        if errors:
            raise errors.pop()
        return int(reclaim())

    worker._sweep.reclaim_stale = failing
    caplog.set_level(logging.CRITICAL)
    front.submit("c1", "hello", message_id="m1", wait_ms=0)
    worker.status("c1", "m1")
    until(lambda: answered(front, "c1", "m1"))
    assert not errors


def test_failed_turn_is_retried_by_the_poller(new_chat: NewChat, database: Database) -> None:
    worker, front = polled(new_chat, limits=Limits(sweep_ms=20, backoff_ms=1)), new_chat()

    def fails_once(turn: Any) -> str:
        if turn.token == 1:
            raise RuntimeError("not today")
        return "ok"

    worker.handler()(fails_once)
    front.submit("c1", "hello", message_id="m1", wait_ms=0)
    worker.status("c1", "m1")
    until(lambda: answered(front, "c1", "m1"))
    assert [row["state"] for row in rows.turns(database)] == ["failed", "done"]


class Stop(BaseException):
    """No Exception, and nothing that asks a program to end."""


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, Stop])
def test_handler_that_exits_in_the_poller_is_charged(
    new_chat: NewChat, database: Database, error: type[BaseException]
) -> None:
    """Nobody else raises it there: handed back uncharged, its turn would begin again every second, for ever."""
    worker, front = polled(new_chat, limits=Limits(sweep_ms=20, backoff_ms=1)), new_chat()

    def exits_once(turn: Any) -> str:
        if turn.token == 1:
            raise error
        return "ok"

    worker.handler()(exits_once)
    front.submit("c1", "hello", message_id="m1", wait_ms=0)
    worker.status("c1", "m1")
    until(lambda: answered(front, "c1", "m1"))
    assert [(row["state"], row["error"]) for row in rows.turns(database)] == [
        ("failed", error.__name__),
        ("done", None),
    ]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_handler_that_exits_beside_the_main_threads_loop_is_charged_and_the_loop_goes_on(
    database: Database, kind: str, error: type[BaseException]
) -> None:
    """Raised on, the message would end the process, and the next one that runs it, for ever."""

    def exits(turn: Any) -> None:
        raise error

    async def exits_async(turn: Any) -> None:
        raise error

    async def main() -> Any:
        async with AsyncChatlock(database.url, tenant="t", limits=Limits(sweep_ms=20, attempts_max=1)) as chat:
            chat.handler()(exits if kind == "sync" else exits_async)
            await asyncio.to_thread(store)
            await chat.status("c1", "m1")
            while isinstance(outcome := await chat.status("c1", "m1"), Queued):  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)  # bounded poll
            return outcome

    def store() -> None:
        with Chatlock(database.url, tenant="t", poller=False) as front:
            front.submit("c1", "hello", message_id="m1", wait_ms=0)

    assert asyncio.run(asyncio.wait_for(main(), SECONDS_MAX)) == Dead(message_id="m1", seq=1, reason=error.__name__)


def test_close_ends_the_poller_and_hands_its_turns_back(new_chat: NewChat, database: Database) -> None:
    worker, front = polled(new_chat), new_chat()
    gate = Gate()
    worker.handler()(lambda turn: gate.hold())
    front.submit("c1", "hello", message_id="m1", wait_ms=0)
    worker.status("c1", "m1")
    gate.wait_entered()
    worker.close()
    assert [row["state"] for row in rows.turns(database)] == ["released"]
    assert not worker._poller._os_thread.is_alive()
    gate.open()


def test_close_with_a_drain_lets_running_turns_end(new_chat: NewChat, database: Database) -> None:
    worker, front = polled(new_chat), new_chat()
    gate = Gate()
    worker.handler()(lambda turn: gate.hold() or "ok")
    front.submit("c1", "hello", message_id="m1", wait_ms=0)
    worker.status("c1", "m1")
    gate.wait_entered()
    gate.open()
    worker.close(drain_ms=20_000)
    assert answered(front, "c1", "m1")
