"""What a caller is told is true whatever happened to its turn, and nobody waits for a wake that was lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from chatlock import Answered, Chatlock, Key, Turn
from chatlock.heart import Heart
from chatlock.io import SyncSignal, drive
from chatlock.ops.heartbeat import Beat, Pulse
from chatlock.ops.inspect import Look
from chatlock.protocol import Limits
from chatlock.testing import Schedule
from chatlock.wake import waiters as waiters_module
from chatlock.wake.waiters import Waiters

if TYPE_CHECKING:
    from tests.support.databases import Database

HOUR_S = 3_600.0
HOUR_MS = 3_600_000
WAIT_MS = 2_000


def client(database: Database, **options: Any) -> Chatlock:
    return Chatlock(database.url, tenant="acme", poller=False, **options)


def test_caller_whose_turn_was_taken_is_told_the_reply_that_was_stored(database: Database) -> None:
    runs: list[int] = []
    with client(database) as chat, client(database) as operator:

        @chat.handler()
        def answer(turn: Turn) -> str:
            runs.append(turn.token)
            if len(runs) == 1:
                assert operator.free("t1", turn=turn.token, force=True).done
            return f"run {len(runs)}"

        outcome = chat.submit("t1", "hello", message_id="m1")
    assert isinstance(outcome, Answered)
    assert (outcome.reply, outcome.turn) == ("run 2", runs[-1])


def test_caller_whose_turn_answered_others_only_goes_on_to_its_own_message(database: Database) -> None:
    with client(database, limits=Limits(batch_max=1)) as chat, client(database) as other:
        other.submit("t1", "earlier", message_id="m1", wait_ms=0)

        @chat.handler()
        def answer(turn: Turn) -> str:
            return f"to {turn.messages[0].message_id}"

        outcome = chat.submit("t1", "hello", message_id="m2")
    assert isinstance(outcome, Answered)
    assert outcome.reply == "to m2"


@pytest.fixture
def no_regular_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a wake makes the shared look."""
    monkeypatch.setattr(waiters_module, "LOOK_EVERY_S", HOUR_S)


@pytest.mark.usefixtures("no_regular_look")
def test_wake_between_the_store_and_the_sleep_is_kept(database: Database) -> None:
    with client(database) as chat, ThreadPoolExecutor(1) as elsewhere:
        held = elsewhere.submit(chat.begin, "t1", "first").result()  # who has a turn to run never waits for its thread
        assert isinstance(held, Turn)

        @chat.handler()
        def answer(turn: Turn) -> str:
            return "second reply"

        store = chat._flows.store
        submit = store.submit

        async def then_the_holder_finishes(*arguments: Any) -> Any:
            stored = await submit(*arguments)
            held.finish("first reply")
            return stored

        store.submit = then_the_holder_finishes  # type: ignore[method-assign]
        outcome = chat.submit("t1", "second", wait_ms=WAIT_MS)
    assert isinstance(outcome, Answered)


@pytest.mark.usefixtures("no_regular_look")
def test_waiter_that_leaves_before_it_claims_is_followed_by_another() -> None:
    key = Key("acme", "t1")
    waiters = Waiters(lambda waited: {name: Look(resolved=False, claimable=True) for name in waited}, lambda keys: {})
    first, second = (waiters.subscribe(key, SyncSignal(), claims=True) for _ in range(2))
    for seq, waiter in enumerate((first, second), start=1):
        waiters.arm(waiter, ("acme", "t1", 1, seq))
    waiters.wake(key)
    assert drive(first.signal.wait(WAIT_MS / 1000))
    waiters.unsubscribe(first)
    assert drive(second.signal.wait(WAIT_MS / 1000))
    waiters.close()


class Open:
    """What the heart knows of a turn."""

    def __init__(self) -> None:
        self.claim = SimpleNamespace(claim_id="c")
        self.lives = True

    def alive(self) -> bool:
        return self.lives


def test_turn_whose_caller_is_gone_is_beaten_for_no_more() -> None:
    heart, turn = Heart(lambda claim: Pulse(Beat.EXTENDED), HOUR_MS), Open()
    heart.add(turn)
    heart._take_due()
    assert len(heart) == 1
    turn.lives = False
    heart._take_due()
    assert len(heart) == 0
    heart.close()


def test_submit_that_waits_for_a_recreation_is_stored_in_the_new_life(database: Database) -> None:
    with client(database) as one, client(database) as two:
        for number in range(3):
            with one.turn("t1", "hello", message_id=f"old{number}") as turn:
                turn.finish("hi")
        one.delete("t1")
        schedule = Schedule()
        with schedule.attached(one, two):
            schedule.actor("A", lambda: one.submit("t1", "a", message_id="a", recreate=True, wait_ms=0))
            schedule.actor("B", lambda: two.submit("t1", "b", message_id="b", wait_ms=0))
            played = schedule.play("AAABAB")  # B's statement began while the longer life was the last committed one
        assert [played.value("A").seq, played.value("B").seq] == [1, 2]
        assert one.verify().ok
