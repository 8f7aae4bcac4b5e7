"""How a turn begins and ends: granted or not, finished, failed, handed back, lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from chatlock import (
    Answered,
    AsyncChatlock,
    Busy,
    Chatlock,
    Conflict,
    Gone,
    InvalidInput,
    Parked,
    Queued,
    StoreUnavailable,
    TurnNotFinished,
    TurnNotGranted,
)
from tests.conformance import rows
from tests.conformance.conftest import BOTH, Start
from tests.support.databases import Database
from tests.support.waiting import SECONDS_MAX, Gate, until

pytestmark = BOTH

HANDED_BACK = [KeyboardInterrupt, SystemExit, GeneratorExit]


# -- begin and turn ----------------------------------------------------------------------------------------------------
def test_begin_gives_a_turn_that_the_caller_ends(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", "hello", message_id="m1")
    assert (turn.key.tenant, turn.key.thread, turn.agent, turn.token) == ("t", "c1", "default", 1)
    row = rows.thread_row(database)
    assert (row["status"], row["claim_id"], row["owner"]) == ("running", turn.claim_id, chat._flows.store.owner)
    turn.finish("ok")
    assert chat.status("c1", "m1").reply == "ok"


def test_begin_needs_no_handler_and_runs_none(chat: Any) -> None:
    chat.handler()(lambda turn: pytest.fail("the handler ran"))
    turn = chat.begin("c1", "hello")
    turn.finish("ok")


@pytest.mark.parametrize("told", [Queued, Busy, Parked, Gone, Conflict])
def test_turn_that_is_not_granted_says_why(chat: Any, start: Start, told: type, database: Database) -> None:
    with chat.turn("c1", "hello", message_id="m1") as turn:
        turn.finish("ok")
    options: dict[str, Any] = {"wait_ms": 0}
    if told in (Queued, Busy):
        chat.begin("c1", "held")
    if told is Busy:
        options["policy"] = "reject"
    if told is Parked:
        chat.park("c1")
    if told is Gone:
        chat.delete("c1")
    message_id = "m1" if told is Conflict else "m2"

    def attempt() -> Any:
        with pytest.raises(TurnNotGranted) as refused, chat.turn("c1", "more", message_id=message_id, **options):
            pytest.fail("the block ran")
        return refused.value.outcome

    assert type(start(attempt).result(SECONDS_MAX)) is told
    begun = start(lambda: chat.begin("c1", "more", message_id=message_id, **options)).result(SECONDS_MAX)
    assert type(begun) is told


def test_turn_waits_for_the_thread(chat: Any, start: Start, database: Database) -> None:
    held = chat.begin("c1", "first")

    def attempt() -> Any:
        with chat.turn("c1", "second", wait_ms=SECONDS_MAX * 1000) as turn:
            turn.finish("ok")
            return [message.payload for message in turn.messages]

    waiting = start(attempt)
    until(lambda: rows.thread_row(database)["last_seq"] == 2)
    held.finish("ok")
    assert waiting.result(SECONDS_MAX) == ["second"]


# -- finishes that meet -----------------------------------------------------------------------------------------------
def test_second_finish_beside_the_first_is_refused(chat: Any, start: Start) -> None:
    """Of two at once, neither caller could tell whose reply was stored."""
    gate = Gate()
    with chat.turn("c1", 1, message_id="m1") as turn:
        chat._executor.points = lambda point: gate.hold() if point == "finish_hot.commit" else None
        first = start(lambda: turn.finish("first"))
        gate.wait_entered()
        for call in (lambda: turn.finish("second"), lambda: turn.suspend("second?")):
            with pytest.raises(InvalidInput) as refused:
                call()
            assert refused.value.reason == "turn_ended"
        gate.open()
        first.result(SECONDS_MAX)
    assert chat.status("c1", "m1").reply == "first"


def test_finish_that_finds_its_turn_done_tells_the_reply_that_was_stored(chat: Any) -> None:
    """The first seemed to fail after its commit."""
    hot, refusals = chat._executor.hot, []

    def commits_and_goes_away(name: str, op: Any) -> Any:
        chat._executor.hot = hot
        hot(name, op)
        raise StoreUnavailable("away")

    def handler(turn: Any) -> None:
        chat._executor.hot = commits_and_goes_away
        with pytest.raises(StoreUnavailable):
            turn.finish("real")
        if turn.messages[0].payload == "asks":
            with pytest.raises(InvalidInput) as refused:
                turn.suspend("sorry?")
            refusals.append(refused.value.reason)
        else:
            turn.finish("sorry")

    chat.handler()(handler)
    for thread, payload in (("c1", "finishes"), ("c2", "asks")):
        outcome = chat.submit(thread, payload, message_id="m1")
        assert (type(outcome), outcome.reply, outcome.question) == (Answered, "real", None)
        assert chat.status(thread, "m1").reply == "real"
    assert refusals == ["turn_ended"]


# -- the end of the block ----------------------------------------------------------------------------------------------
def test_block_that_ends_without_finish_fails_the_turn(chat: Any, database: Database) -> None:
    with pytest.raises(TurnNotFinished), chat.turn("c1", "hello"):
        pass
    assert [(row["state"], row["error"]) for row in rows.turns(database)] == [("failed", "TurnNotFinished")]
    assert (rows.thread_row(database)["attempts"], rows.dispositions(database)) == (1, ["pending"])


def test_exception_fails_the_turn_and_is_raised_on(chat: Any, database: Database) -> None:
    with pytest.raises(ZeroDivisionError), chat.turn("c1", "hello"):
        _ = 1 / 0
    assert [(row["state"], row["error"]) for row in rows.turns(database)] == [("failed", "ZeroDivisionError")]
    assert rows.thread_row(database)["attempts"] == 1


@pytest.mark.parametrize("error", HANDED_BACK)
def test_interruption_hands_the_turn_back_uncharged_and_is_raised_on(
    chat: Any, database: Database, error: type[BaseException]
) -> None:
    with pytest.raises(error), chat.turn("c1", "hello"):
        raise error
    (row,) = rows.turns(database)
    thread = rows.thread_row(database)
    assert (row["state"], row["error"]) == ("released", None)
    assert (thread["status"], thread["attempts"], thread["stalls"], thread["not_before"]) == ("idle", 0, 0, 0)
    assert rows.dispositions(database) == ["pending"]
    assert len(rows.table(database, "chatlock_due")) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupted_handler_hands_the_turn_back_uncharged(database: Database, error: type[BaseException]) -> None:
    def handler(turn: Any) -> Any:
        raise error

    with Chatlock(database.url, tenant="t", poller=False) as chat:
        chat.handler()(handler)
        with pytest.raises(error):
            chat.submit("c1", "hello")
    assert [row["state"] for row in rows.turns(database)] == ["released"]
    assert rows.thread_row(database)["attempts"] == 0


def test_cancelled_handler_hands_the_turn_back_uncharged(database: Database) -> None:
    async def main() -> None:
        async with AsyncChatlock(database.url, tenant="t", poller=False) as chat:
            entered = asyncio.Event()

            @chat.handler()
            async def handler(turn: Any) -> None:
                entered.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(chat.submit("c1", "hello"))
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert [row["state"] for row in rows.turns(database)] == ["released"]
    assert rows.thread_row(database)["attempts"] == 0


def test_cancellation_of_something_else_that_a_block_lets_through_is_charged(chat: Any, database: Database) -> None:
    with pytest.raises(asyncio.CancelledError), chat.turn("c1", "hello"):
        raise asyncio.CancelledError
    assert [(row["state"], row["error"]) for row in rows.turns(database)] == [("failed", "CancelledError")]
    assert rows.thread_row(database)["attempts"] == 1


def test_turn_that_was_finished_survives_an_exception_after_it(chat: Any, database: Database) -> None:
    with suppress(ZeroDivisionError), chat.turn("c1", "hello") as turn:
        turn.finish("ok")
        _ = 1 / 0
    assert rows.dispositions(database) == ["answered"]


def test_fail_charges_the_turn_and_keeps_its_text(chat: Any, database: Database) -> None:
    with chat.turn("c1", "hello") as turn:
        turn.fail("the model is away")
    assert [(row["state"], row["error"]) for row in rows.turns(database)] == [("failed", "the model is away")]
    assert rows.thread_row(database)["attempts"] == 1


def test_fail_with_an_exception_keeps_its_name_and_no_text_of_the_user(chat: Any, database: Database) -> None:
    with chat.turn("c1", "hello") as turn:
        turn.fail(ValueError("account 4711"))
    assert [row["error"] for row in rows.turns(database)] == ["ValueError"]


@pytest.mark.parametrize(
    ("text", "kept"), [("x" * 300, "x" * 200), ("a\0b", r"a\x00b"), ("a\ud800b", r"a\ud800b"), ("é" * 3, "é" * 3)]
)
def test_fail_takes_any_text(chat: Any, database: Database, text: str, kept: str) -> None:
    with chat.turn("c1", "hello") as turn:
        turn.fail(text)
    assert [row["error"] for row in rows.turns(database)] == [kept]


def test_release_hands_the_turn_back_uncharged_and_may_be_repeated(chat: Any, database: Database) -> None:
    with chat.turn("c1", "hello", message_id="m1") as turn:
        assert turn.release() is True
        assert turn.release() is False
    assert [row["state"] for row in rows.turns(database)] == ["released"]
    with chat.turn("c1", "hello", message_id="m1") as turn:
        assert turn.token == 2
        turn.finish("ok")


def test_release_of_a_claim_that_was_taken_changes_nothing(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", "hello", message_id="m1")
    chat.free("c1", turn=turn.token, force=True)
    taker = chat.begin("c1", "hello", message_id="m1")
    before = rows.dump(database)
    assert turn.release() is False
    assert rows.dump(database) == before
    taker.finish("ok")


def test_turn_of_a_generator_that_is_left_is_handed_back(database: Database) -> None:
    def answers(chat: Chatlock) -> Iterator[str]:
        with chat.turn("c1", "hello") as turn:
            yield "first"
            turn.finish("never")

    with Chatlock(database.url, tenant="t", poller=False) as chat:
        generator = answers(chat)
        assert next(generator) == "first"
        generator.close()
    assert [row["state"] for row in rows.turns(database)] == ["released"]


def test_cancelled_task_hands_its_turn_back(database: Database) -> None:
    async def main() -> None:
        async with AsyncChatlock(database.url, tenant="t", poller=False) as chat:
            entered = asyncio.Event()

            async def work() -> None:
                async with chat.turn("c1", "hello"):
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert [row["state"] for row in rows.turns(database)] == ["released"]


@pytest.mark.parametrize("point", ["submit_hot.begin", "submit_hot.commit"])
def test_task_cancelled_while_it_claims_leaves_no_claim(database: Database, point: str) -> None:
    """The claim commits in its OS thread after the cancellation came; it is handed back before the task ends."""
    reached, go = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        if name == point:
            reached.set()
            assert go.wait(SECONDS_MAX)

    async def main() -> None:
        async with AsyncChatlock(database.url, tenant="t", poller=False) as chat:
            chat._executor.points = hold
            task = asyncio.create_task(chat.begin("c1", "hello"))
            await asyncio.to_thread(reached.wait, SECONDS_MAX)
            task.cancel()
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert rows.thread_row(database)["status"] == "idle"
    assert [row["state"] for row in rows.turns(database)] == ["released"]


def test_submit_that_is_cancelled_while_it_waits_leaves_its_message(database: Database) -> None:
    async def main() -> None:
        async with AsyncChatlock(database.url, tenant="t", poller=False) as chat:
            task = asyncio.create_task(chat.submit("c1", "hello", message_id="m1"))
            await asyncio.to_thread(until, lambda: armed(chat))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(chat._flows.waiters) == 0
            assert isinstance(await chat.status("c1", "m1"), Queued)

    asyncio.run(main())


def armed(chat: Any) -> bool:
    """Whether someone waits for a stored message."""
    return any(waiter.waited for waiters in chat._flows.waiters._by_key.values() for waiter in waiters)
