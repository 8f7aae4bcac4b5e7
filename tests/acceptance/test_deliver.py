"""@chat.deliver: a reply is written by finish in its transaction, and sent in order, leased, fenced, at least once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy

from chatlock import Answered, Chatlock, ClaimLost, Delivery, Limits
from chatlock.console import Console
from chatlock.inputs import Key
from chatlock.urls import checked_url
from chatlock.writes import intents
from tests.acceptance.cases.recovery import STILL
from tests.acceptance.cases.support import (
    TENANT,
    Agent,
    Journal,
    Points,
    age_claim,
    reclaim_aged,
    rows,
    skip_backoff,
    turn_rows,
    until,
)
from tests.acceptance.channel import Channel, all_intents, carry_out, dispatch, lapse, skip_pause, states
from tests.conformance.bridge import Bridge
from tests.conformance.clocks import now
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.databases import Database


@pytest.fixture(params=["sync", "async"])
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_chat(database: Database, world: str) -> Iterator[Any]:
    """Makes clients of the world whose deliveries go where the test says, by hand unless `poller=True`."""
    made: list[Any] = []

    def make(call: Any, *, expire_ms: int | None = None, **options: Any) -> Any:
        options = {"tenant": TENANT, "poller": False, "limits": STILL} | options
        chat: Any = (Chatlock if world == "sync" else Bridge)(database.url, **options)
        made.append(chat)
        chat.handler()(lambda turn: {"answers": [m.message_id for m in turn.messages]})
        chat.deliver(expire_ms=expire_ms)(call)
        return chat

    yield make
    for chat in made:
        chat.close()


@pytest.fixture
def channel() -> Channel:
    return Channel()


# -- written by finish -------------------------------------------------------------------------------------------------
def test_finish_writes_the_reply_in_its_own_transaction(new_chat: Any, database: Database, channel: Channel) -> None:
    chat = new_chat(channel)
    seen: list[int] = []
    if database.kind == "postgresql":  # on SQLite nobody can look beside the open transaction's writer
        Points(chat).on("finish.commit", lambda: seen.append(len(all_intents(database))))
    chat.submit("thread", "hello", message_id="m1")
    (intent,) = all_intents(database)
    (turn,) = turn_rows(database, "thread")
    assert (intent["state"], intent["token"], intent["payload"]) == ("pending", turn["token"], turn["reply"])
    assert seen == ([0] if database.kind == "postgresql" else [])
    assert channel.sent == []


def test_question_is_delivered_with_its_id(new_chat: Any, database: Database, channel: Channel) -> None:
    chat, sent = new_chat(channel), list[Any]()
    chat.handler("asking")(lambda turn: turn.suspend("go on?"))
    chat.deliver("asking")(sent.append)
    told = chat.submit("thread", "hello", agent="asking")
    chat.submit("other", "hello")
    dispatch(chat)
    assert [(delivery.reply, delivery.question) for delivery in sent] == [("go on?", told.question)]
    assert [delivery.question for delivery in channel.sent] == [None]


def test_agent_without_a_deliver_function_writes_no_intent(new_chat: Any, database: Database, channel: Channel) -> None:
    """The control: an intent is there because @chat.deliver is."""
    chat = new_chat(channel)
    chat.handler("silent")(lambda turn: "done")
    assert isinstance(chat.submit("thread", "hello", agent="silent"), Answered)
    assert all_intents(database) == []


def test_finish_in_the_callers_transaction_is_rolled_back_with_its_reply(database: Database, channel: Channel) -> None:
    engine = sqlalchemy.create_engine(checked_url(database.url))
    if database.kind == "sqlite":
        sqlalchemy.event.listen(engine, "connect", lambda dbapi, record: setattr(dbapi, "isolation_level", None))
        sqlalchemy.event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN IMMEDIATE"))
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=STILL) as chat:
        chat.deliver()(channel)
        with chat.turn("thread", "hello", message_id="m1") as turn:
            with engine.connect() as conn:
                conn.begin()
                turn.finish("first", conn=conn)
                conn.rollback()
            assert all_intents(database) == []
            with engine.begin() as conn:
                turn.finish("second", conn=conn)
        assert dispatch(chat) == [True]
    assert [delivery.reply for delivery in channel.sent] == ["second"]
    engine.dispose()


def test_turns_that_end_without_a_reply_write_none(new_chat: Any, database: Database, channel: Channel) -> None:
    chat = new_chat(channel)
    with pytest.raises(ValueError, match="no"), chat.turn("thread", "hello"):
        raise ValueError("no")
    chat.begin("other", "hello").release()
    assert all_intents(database) == []


def test_reply_of_a_stale_turn_is_never_sent(new_chat: Any, database: Database, channel: Channel) -> None:
    """B44 (c): the paused owner wakes up right before its finish; the sink sees the other turn's reply alone."""
    chat, other = new_chat(channel), new_chat(channel)
    stale = chat.begin("thread", "hello", message_id="m1")
    age_claim(database, "thread")
    assert reclaim_aged(other) == 1
    skip_backoff(database)
    assert isinstance(other.submit("thread", "again", message_id="m2"), Answered)
    with pytest.raises(ClaimLost):
        stale.finish("stale")
    for _ in range(3):
        dispatch(chat)
    assert [delivery.token for delivery in channel.sent] == [turn_rows(database, "thread")[-1]["token"]]
    assert channel.ids == ["m1", "m2"]


# -- sent in order -----------------------------------------------------------------------------------------------------
def test_replies_leave_in_the_order_of_turns_even_if_the_first_send_fails(
    new_chat: Any, database: Database, channel: Channel
) -> None:
    """B16: m2's send is refused at first; nothing of its thread overtakes it, and no other thread waits for it."""
    chat = new_chat(channel)
    for name in ("m1", "m2", "m3", "m4"):
        chat.submit("thread", name, message_id=name)
    chat.submit("other", "x", message_id="x")
    channel.failing = {"m2"}
    for _ in range(4):
        dispatch(chat)
    assert sorted(channel.ids) == ["m1", "x"]
    channel.failing = set()
    skip_pause(database)
    for _ in range(3):
        dispatch(chat)
    assert [i for i in channel.ids if i != "x"] == ["m1", "m2", "m3", "m4"]
    again = [(d.message_ids, d.maybe_duplicate, d.attempt) for d in channel.sent if d.attempt > 1]
    assert again == [(("m2",), True, 2)]


def test_waiters_behind_a_held_turn_are_answered_and_delivered_in_order(
    database: Database, channel: Channel, tmp_path: Path
) -> None:
    """B16: m1 is held, m2 to m4 wait behind it, a turn each; the in-process poller sends."""
    agent = Agent(Journal(tmp_path / "journal"))
    limits = Limits(batch_max=1, sweep_ms=100)
    with Chatlock(database.url, tenant=TENANT, limits=limits) as chat, ThreadPoolExecutor(4) as people:
        chat.handler()(agent)
        chat.deliver()(channel)
        gate = agent.hold("thread")
        told = [people.submit(chat.submit, "thread", "m1", message_id="m1")]
        gate.wait_entered()
        for number in (2, 3, 4):
            told.append(people.submit(chat.submit, "thread", "more", message_id=f"m{number}"))
            until(lambda n=number: rows(database, "SELECT 1 AS x FROM chatlock_messages WHERE seq = :n", n=n))
        gate.open()
        for future in told:
            future.result(20)
        until(lambda: len(channel.sent) == 4, what="four replies")
    assert [delivery.message_ids for delivery in channel.sent] == [("m1",), ("m2",), ("m3",), ("m4",)]


def test_thread_that_is_held_by_its_first_reply_keeps_the_second_from_being_leased(
    new_chat: Any, database: Database, channel: Channel
) -> None:
    chat = new_chat(channel)
    for name in ("m1", "m2"):
        chat.submit("thread", name, message_id=name)
    (first,) = chat._outbox.ready(100)
    gate = channel.gates["m1"] = Gate()
    with ThreadPoolExecutor(1) as beside:
        sending = beside.submit(carry_out, chat, first)
        gate.wait_entered()
        assert dispatch(chat) == []
        gate.open()
        assert sending.result(20)
    assert dispatch(chat) == [True]
    assert channel.ids == ["m1", "m2"]


# -- leased and fenced -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("late", ["sends", "fails"])
def test_late_dispatcher_loses_its_lease_and_changes_nothing(
    new_chat: Any, database: Database, channel: Channel, late: str, caplog: pytest.LogCaptureFixture
) -> None:
    chat = new_chat(channel)
    other = new_chat(quick := Channel())
    chat.submit("thread", "hello", message_id="m1")
    (seen,) = chat._outbox.ready(100)
    gate = channel.gates["m1"] = Gate()
    with ThreadPoolExecutor(1) as beside:
        paused = beside.submit(carry_out, chat, seen)
        gate.wait_entered()
        assert dispatch(other) == [], "a lease in force is respected"
        lapse(database)
        assert dispatch(other) == [True]
        before = all_intents(database)
        channel.failing = {"m1"} if late == "fails" else set()
        gate.open()
        assert paused.result(20) is False
    assert all_intents(database) == before
    assert states(database) == ["sent"]
    assert [delivery.maybe_duplicate for delivery in quick.sent] == [True]
    assert len({d.step_key for d in (*channel.sent, *quick.sent)}) == 1
    if late == "sends":
        assert "intent.lost_lease" in caplog.messages


def test_dispatchers_at_once_send_each_reply_once(new_chat: Any, database: Database, channel: Channel) -> None:
    chats = [new_chat(channel), new_chat(channel)]
    for number in range(20):
        chats[0].submit(f"thread-{number}", "hello", message_id=f"m{number}")
    seen = chats[0]._outbox.ready(100)
    assert seen == chats[1]._outbox.ready(100)
    assert len(seen) == 20
    barrier = threading.Barrier(2)

    def race(chat: Any) -> list[bool]:
        ended = []
        for intent in seen:
            barrier.wait(20)
            ended.append(carry_out(chat, intent))
        return ended

    with ThreadPoolExecutor(2) as beside:
        first, second = beside.map(race, chats)
    assert all(a != b for a, b in zip(first, second, strict=True)), "exactly one of the two ended each"
    assert sorted(channel.ids) == sorted(f"m{number}" for number in range(20))
    assert not any(delivery.maybe_duplicate for delivery in channel.sent)


@pytest.mark.parametrize("kept", ["state = 'pending', not_before", "state = 'leased', leased_until"])
def test_reply_is_sent_although_the_clock_stepped_back(
    new_chat: Any, database: Database, channel: Channel, kept: str
) -> None:
    """A backoff or a lease that ends further off than its maximum counts as passed; one within it does not."""
    chat = new_chat(channel)
    chat.submit("thread", "hello", message_id="m1")
    for far_ms, sent in ((50_000, []), (3_600_000, [True])):
        rows(database, f"UPDATE chatlock_intents SET {kept} = {now(database) + far_ms}")
        assert dispatch(chat) == sent


# -- the end of an intent ----------------------------------------------------------------------------------------------
def test_reply_that_expired_is_not_sent_and_blocks_nothing(new_chat: Any, database: Database, channel: Channel) -> None:
    chat = new_chat(channel, expire_ms=60_000)
    for name in ("m1", "m2"):
        chat.submit("thread", name, message_id=name)
    rows(database, "UPDATE chatlock_intents SET expires_at = 1 WHERE token = 1")
    for _ in range(2):
        dispatch(chat)
    assert states(database) == ["expired", "sent"]
    assert channel.ids == ["m2"]


def test_reply_fails_after_its_last_attempt_and_goes_again_at_an_operators_word(
    new_chat: Any, database: Database, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intents, "ATTEMPTS_MAX", 2)
    chat = new_chat(channel)
    for name in ("m1", "m2"):
        chat.submit("thread", name, message_id=name)
    channel.failing = {"m1"}
    for _ in range(3):
        dispatch(chat)
        skip_pause(database)
    assert states(database) == ["failed", "sent"]
    assert all_intents(database)[0]["error"] == "ConnectionError"
    assert dispatch(chat) == [], "it is left alone"
    channel.failing = set()
    console = Console(chat._executor)
    receipt = console.retry_intent(Key(TENANT, "thread"), 1, "reply", actor="me", reason="back")
    assert receipt.done
    assert not console.retry_intent(Key(TENANT, "thread"), 1, "reply", actor="me", reason="again").done
    assert dispatch(chat) == [True]
    assert (states(database), channel.ids) == (["sent", "sent"], ["m2", "m1"])


def test_deletion_cancels_what_is_pending_and_leaves_what_is_being_sent(
    new_chat: Any, database: Database, channel: Channel
) -> None:
    chat = new_chat(channel)
    for name in ("m1", "m2"):
        chat.submit("thread", name, message_id=name)
    (first,) = chat._outbox.ready(100)
    gate = channel.gates["m1"] = Gate()
    with ThreadPoolExecutor(1) as beside:
        sending = beside.submit(carry_out, chat, first)
        gate.wait_entered()
        chat.delete("thread", reason="asked to")
        assert states(database) == ["leased", "cancelled"]
        gate.open()
        assert sending.result(20)
    assert dispatch(chat) == []
    assert (states(database), channel.ids) == (["sent", "cancelled"], ["m1"])


def test_function_that_exits_fails_its_attempt_alone(new_chat: Any, database: Database) -> None:
    """On a loop it would end the process, and so would the next attempt."""

    def exits(delivery: Delivery) -> None:
        raise SystemExit

    chat = new_chat(exits)
    chat.submit("thread", "hello", message_id="m1")
    assert dispatch(chat) == [False]
    assert [(intent["state"], intent["error"]) for intent in all_intents(database)] == [("pending", "SystemExit")]


# -- kinds of functions ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_both_kinds_of_functions_serve_both_worlds(
    new_chat: Any, database: Database, channel: Channel, kind: str
) -> None:
    chat = new_chat(channel if kind == "function" else channel.send, poller=True, limits=Limits(sweep_ms=100))
    outcome = chat.submit("thread", "hello", message_id="m1")
    assert isinstance(outcome, Answered)
    until(lambda: states(database) == ["sent"], what="the delivery")
    (sent,) = channel.sent
    assert (sent.key, sent.token, sent.message_ids) == (Key(TENANT, "thread"), outcome.turn, ("m1",))
    assert (sent.reply, sent.attempt, sent.maybe_duplicate) == (outcome.reply, 1, False)
