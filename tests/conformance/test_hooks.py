"""The notices of a client: which calls and turns give which, in which context, and that nobody's ear costs nothing."""

from __future__ import annotations

import contextvars
from typing import Any

import pytest
from sqlalchemy import create_engine

from chatlock import Answered, Chatlock, ClaimLost, TurnNotGranted
from chatlock.hooks import (
    ClaimGranted,
    DeliveryEnded,
    MessagesFetched,
    Notice,
    SubmitBegan,
    SubmitEnded,
    TurnEnded,
    TurnEntered,
    TurnLeft,
    TurnReclaimed,
)
from chatlock.inputs import Key
from chatlock.io import drive
from chatlock.urls import checked_url
from tests.conformance import rows
from tests.conformance.bridge import Bridge
from tests.conformance.clocks import Sweeper
from tests.conformance.conftest import BOTH
from tests.support.databases import Database

pytestmark = BOTH


@pytest.fixture
def told(chat: Any) -> list[Notice]:
    """What `chat` told so far."""
    notices: list[Notice] = []
    chat.subscribe(notices.append)
    return notices


def kinds(told: list[Notice]) -> list[str]:
    return [type(notice).__name__ for notice in told]


def only(told: list[Notice], kind: type[Any]) -> Any:
    """The one notice of this kind."""
    (found,) = [notice for notice in told if isinstance(notice, kind)]
    return found


def test_submit_that_runs_its_turn_tells_the_whole_of_it(chat: Any, told: list[Notice]) -> None:
    chat.handler()(lambda turn: "ok")
    chat.submit("c1", "hello", message_id="m1")
    inside = ["ClaimGranted", "MessagesFetched", "TurnEntered", "TurnEnded", "TurnLeft"]
    assert kinds(told) == ["SubmitBegan", *inside, "SubmitEnded"]
    began, granted, fetched, entered, ended, left, submitted = told
    assert began == SubmitBegan(Key("t", "c1"), "m1", "default")
    assert isinstance(granted, ClaimGranted)
    assert isinstance(entered, TurnEntered)
    assert fetched == MessagesFetched(granted.claim, entered.messages)
    assert isinstance(ended, TurnEnded)
    assert isinstance(left, TurnLeft)
    assert isinstance(submitted, SubmitEnded)
    assert (granted.by, granted.claim.key, granted.claim.token) == ("submit", Key("t", "c1"), 1)
    assert granted.waited_s is not None
    assert granted.waited_s >= 0
    assert [message.message_id for message in entered.messages] == ["m1"]
    assert entered.claim == ended.claim == left.claim == granted.claim
    assert (ended.how, ended.messages) == ("done", 1)
    assert (submitted.message_id, submitted.outcome, submitted.agent) == ("m1", "answered", "default")
    assert submitted.seconds >= ended.seconds >= 0


def test_calls_are_told_with_the_name_of_their_outcome(chat: Any, told: list[Notice]) -> None:
    turn = chat.begin("c1", "hello", message_id="m1")
    chat.submit("c1", "hello", message_id="m2", agent="nobody", wait_ms=0)
    turn.finish("ok")
    chat.submit("c1", "hello", message_id="m1")
    with pytest.raises(TurnNotGranted), chat.turn("c1", "other", message_id="m1"):
        raise AssertionError("no turn was granted")
    chat._executor.points = lambda name: 1 / 0
    with pytest.raises(ZeroDivisionError):
        chat.submit("c1", "hello", message_id="m3")
    chat._executor.points = None
    ended = [(notice.outcome, notice.error_type) for notice in told if isinstance(notice, SubmitEnded)]
    assert ended == [
        ("granted", None),
        ("queued", None),
        ("already_answered", None),
        ("conflict", None),
        ("raised", "ZeroDivisionError"),
    ]


def test_submit_in_the_callers_transaction_tells_its_outcome(chat: Any, told: list[Notice], database: Database) -> None:
    engine = create_engine(checked_url(database.url))
    with engine.begin() as conn:
        chat.submit("c1", "hello", conn=conn)
    engine.dispose()
    assert only(told, SubmitEnded).outcome == "queued"


def test_turn_of_begin_is_never_entered(chat: Any, told: list[Notice]) -> None:
    chat.begin("c1", "hello").release()
    assert kinds(told) == ["SubmitBegan", "ClaimGranted", "MessagesFetched", "SubmitEnded", "TurnEnded"]
    assert only(told, TurnEnded).how == "released"


def test_block_is_entered_and_left(chat: Any, told: list[Notice]) -> None:
    with chat.turn("c1", "hello") as turn:
        turn.finish("ok")
    granted = ["SubmitBegan", "ClaimGranted", "MessagesFetched", "SubmitEnded"]
    assert kinds(told) == [*granted, "TurnEntered", "TurnEnded", "TurnLeft"]


def test_handler_that_raises_is_a_failed_turn(chat: Any, told: list[Notice]) -> None:
    def broken(turn: Any) -> None:
        raise ValueError

    chat.handler()(broken)
    chat.submit("c1", "hello", wait_ms=0)
    ended = only(told, TurnEnded)
    assert (ended.how, ended.error_type) == ("failed", "ValueError")


def test_every_fetch_tells_what_it_brought(chat: Any, told: list[Notice]) -> None:
    turn = chat.begin("c1", "hello")
    chat.submit("c1", "more", message_id="m2", wait_ms=0)
    turn.fetch()
    turn.fetch()  # brings nothing
    fetched = [[m.payload for m in notice.messages] for notice in told if isinstance(notice, MessagesFetched)]
    assert fetched == [["hello"], ["more"]]


def test_trace_is_stored_with_a_message_and_found_by_its_turn(chat: Any) -> None:
    traces = iter(["hot", "beside", "locked", "edited", "edit"])
    chat.subscribe(lambda notice: None, trace=lambda: next(traces))
    turn = chat.begin("c1", "hello")
    assert [m.trace for m in turn.messages] == ["hot"]
    chat.submit("c1", "more", wait_ms=0)
    chat.submit("c1", "last", wait_ms=0, expire_ms=60_000)
    chat.submit("c1", "wrong", message_id="m4", wait_ms=0)
    chat.edit("c1", "m4", "right", "m5")
    assert [m.trace for m in turn.fetch()] == ["beside", "locked", "edit"]


@pytest.mark.parametrize(
    "trace", ["x" * 513, "a\0b", "caf\u00e9", 7, None], ids=["long", "nul", "other", "int", "none"]
)
def test_trace_that_cannot_be_one_is_not_stored(chat: Any, trace: Any) -> None:
    chat.subscribe(lambda notice: None, trace=lambda: trace)
    assert chat.begin("c1", "hello").messages[0].trace is None


def test_trace_that_raises_is_logged_and_the_message_stored(chat: Any, caplog: pytest.LogCaptureFixture) -> None:
    chat.subscribe(lambda notice: None, trace=lambda: 1 / 0)
    assert chat.begin("c1", "hello").messages[0].trace is None
    assert [record.message.partition(":")[0] for record in caplog.records] == ["hook.failed"]


def test_claims_name_who_claimed(chat: Any, told: list[Notice], database: Database) -> None:
    with Chatlock(database.url, tenant="t", poller=False) as other:
        other.submit("c1", "hello", wait_ms=0)

        def answer(turn: Any) -> str:
            if turn.token == 1:
                other.submit("c1", "more", wait_ms=0)
            return "ok"

        chat.handler()(answer)
        chat.sweep_once()
    claims = [(notice.by, notice.waited_s) for notice in told if isinstance(notice, ClaimGranted)]
    assert claims == [("poller", None), ("hand_off", None)]


def test_reclaim_and_the_lost_turn_are_told(chat: Any, told: list[Notice], database: Database) -> None:
    turn = chat.begin("c1", "hello")
    rows.pass_lease(database)
    assert Sweeper(chat).reclaim() == 1
    assert only(told, TurnReclaimed) == TurnReclaimed(Key("t", "c1"), 1, "lease")
    with pytest.raises(ClaimLost):
        turn.finish("late")
    assert only(told, TurnEnded).how == "lost"


def test_attempts_to_deliver_are_told(chat: Any, told: list[Notice]) -> None:
    def deliver(delivery: Any) -> None:
        if delivery.token == 2:
            raise ValueError

    chat.deliver()(deliver)
    chat.handler()(lambda turn: "ok")
    chat.submit("c1", "hello")
    chat.submit("c1", "again")
    for _ in range(2):
        (seen,) = chat._outbox.ready(1)
        flow = chat._outbox.carry_out(seen)
        _ = chat.run(flow) if isinstance(chat, Bridge) else drive(flow)
    deliveries = [notice for notice in told if isinstance(notice, DeliveryEnded)]
    assert deliveries == [
        DeliveryEnded(Key("t", "c1"), 1, "default", 1, "sent"),
        DeliveryEnded(Key("t", "c1"), 2, "default", 1, "retried"),
    ]


def test_entered_and_left_are_told_in_the_context_of_the_handler(chat: Any) -> None:
    inside: contextvars.ContextVar[bool] = contextvars.ContextVar("inside", default=False)
    tokens, after = [], []

    def follow(notice: Notice) -> None:
        if isinstance(notice, TurnEntered):
            tokens.append(inside.set(True))
        elif isinstance(notice, TurnLeft):
            inside.reset(tokens.pop())  # ValueError in another context
            after.append(inside.get())

    chat.subscribe(follow)
    chat.handler()(lambda turn: inside.get())
    assert chat.submit("c1", "hello").reply is True
    assert after == [False]


def test_subscriber_that_raises_stops_nothing_and_is_logged(
    chat: Any, told: list[Notice], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(notice: Notice) -> None:
        raise RuntimeError

    chat.subscribe(broken)
    chat.subscribe(told.append)  # the second time
    chat.handler()(lambda turn: "ok")
    assert isinstance(chat.submit("c1", "hello"), Answered)
    assert len(told) == 7
    assert [record.message.partition(":")[0] for record in caplog.records] == ["hook.failed"] * 7


def test_without_a_subscriber_no_notice_is_made(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*facts: Any) -> None:
        raise AssertionError("a notice was made for nobody")

    submits, turns = ("hooks.SubmitBegan", "hooks.SubmitEnded"), ("flows.ClaimGranted", "flows.TurnEnded")
    for name in (*submits, *turns, "flows.MessagesFetched", "inside.TurnEntered"):
        monkeypatch.setattr(f"chatlock.{name}", made)
    chat.handler()(lambda turn: "ok")
    assert isinstance(chat.submit("c1", "hello"), Answered)
    chat.subscribe(lambda notice: None)
    with pytest.raises(AssertionError):
        chat.submit("c1", "hello")
