"""Intake: a message is stored once and answered once, however often and brokenly it is delivered (B19 to B22)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from chatlock import AlreadyAnswered, Answered, Busy, Chatlock, Conflict, Queued, Unknown, admin, executor
from chatlock.ops import hot, purge
from chatlock.ops.base import b, of_incarnation
from chatlock.schema import messages
from tests.acceptance.cases.support import (
    SECONDS_MAX,
    TENANT,
    Points,
    ProcessGate,
    age_claim,
    age_message,
    assert_invariants,
    message_rows,
    quiesce,
    reclaim_aged,
    rows,
    stop_at_statement,
    stop_here,
    thread_row,
    wait_blocked,
)
from tests.acceptance.cases.wire import Proxy
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from chatlock import Outcome, Turn
    from tests.acceptance.cases.support import Agent, Callers, Gate, Journal
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]
    Keep = Callable[[Child], Child]

DECADE_MS = 10 * 365 * 24 * 3600 * 1000


# -- B19: two copies of one message ------------------------------------------------------------------------------------
def deliver_first(database: Database, commit: ProcessGate, turn: ProcessGate) -> None:
    """The process that gets the first copy: stopped before its commit, and then in its turn."""

    def handle(held: Turn) -> str:
        turn.hold()
        return "from the first"

    with Chatlock(database.url, tenant=TENANT, poller=False) as chat:
        chat.handler()(handle)
        Points(chat).hold_by("submit_hot.commit", commit)
        print(f"first got {type(chat.submit('channel', 'hello', message_id='copy')).__name__}")


class TwoCopies:
    """The second process gets its copy while the first one stands before its commit, and waits for it."""

    def __init__(self, database: Database, serving: Client, callers: Callers, child: Keep) -> None:
        self.commit, self.turn = ProcessGate(), ProcessGate()
        self.first = Child.fork(lambda: deliver_first(database, self.commit, self.turn))
        child(self.first)
        self.chat = serving(database)
        self.commit.wait_entered()
        came = Points(self.chat)
        self.second: Future[Outcome] = callers.submit(self.chat, "channel", "hello", message_id="copy", wait_ms=0)
        wait_blocked(database, came, "submit_hot")
        assert not self.second.done()


def first_message(database: Database) -> None:
    """Makes the thread, on a client that leaves no OS thread behind: its process is forked next."""
    with (
        Chatlock(database.url, tenant=TENANT, poller=False, heartbeat=False) as chat,
        chat.turn("channel", "before", message_id="before") as turn,
    ):
        turn.finish("done")


@pytest.fixture(params=[False, True], ids=["new_thread", "known_thread"])
def known(request: pytest.FixtureRequest, database: Database) -> bool:
    """Whether the thread was there before."""
    if request.param:
        first_message(database)
    return bool(request.param)


def test_second_copy_waits_for_the_first_and_gets_its_seq(
    database: Database, serving: Client, callers: Callers, child: Keep, known: bool
) -> None:
    """B19: the loser is told the winner's seq and state, although the winner had not committed when it came."""
    copies = TwoCopies(database, serving, callers, child)
    copies.commit.open()
    copies.turn.wait_entered()
    expected = Queued(message_id="copy", seq=1 + known, position=0, turn=1 + known)
    assert copies.second.result(SECONDS_MAX) == expected
    copies.turn.open()
    assert copies.first.wait() == 0
    assert "first got Answered" in copies.first.text
    again = callers.ask(copies.chat, "channel", "hello", message_id="copy")
    assert again == AlreadyAnswered(message_id="copy", seq=1 + known, reply="from the first", turn=1 + known)
    assert len(message_rows(database, "channel")) == 1 + known
    assert_invariants(database, copies.chat, told=callers.told)


def test_second_copy_is_stored_if_the_first_is_never_committed(
    database: Database, serving: Client, callers: Callers, child: Keep, known: bool, journal: Journal
) -> None:
    """B19: the process of the first copy is killed before its commit; the second is stored, and answered once."""
    copies = TwoCopies(database, serving, callers, child)
    copies.first.kill()
    assert isinstance(copies.second.result(SECONDS_MAX), Answered)
    assert [e.ids for e in journal.enters()] == [("copy",)]
    assert len(message_rows(database, "channel")) == 1 + known
    assert_invariants(database, copies.chat, told=callers.told)


def test_control_a_check_without_a_constraint_lets_both_copies_in(
    pg_database: Database, serving: Client, callers: Callers, child: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of B19: without the constraint in the statement that stores, the message is stored twice."""
    first_message(pg_database)
    rows(pg_database, "ALTER TABLE chatlock_messages DROP CONSTRAINT chatlock_messages_once")
    once = "ON CONFLICT (tenant, message_id, thread_id, incarnation) DO NOTHING"
    assert once in hot.S1_POSTGRESQL
    monkeypatch.setattr(hot, "S1_POSTGRESQL", hot.S1_POSTGRESQL.replace(once, ""))
    copies = TwoCopies(pg_database, serving, callers, child)
    copies.commit.open()
    copies.turn.open()
    copies.second.result(SECONDS_MAX)
    assert copies.first.wait() == 0
    assert [m["message_id"] for m in message_rows(pg_database, "channel")] == ["before", "copy", "copy"]


IDENTITY = {"+49 151 1": "person", "49151@s.net": "person"}
"""The test's identity resolver: two spellings of one sender."""


def deliver(callers: Callers, chat: Chatlock, request_id: str, sender: str, **options: Any) -> Outcome:
    """An adapter: it takes thread, id and payload from the message, and nothing from its envelope."""
    envelope = {"request": request_id, "from": sender, "message": {"id": "provider-1", "text": "hello"}}
    message: Any = envelope["message"]
    thread = IDENTITY[sender]
    return callers.ask(chat, thread, message["text"], message_id=message["id"], **options)


@pytest.mark.parametrize("senders", [("+49 151 1", "+49 151 1"), ("+49 151 1", "49151@s.net")], ids=["same", "alias"])
def test_same_message_under_another_request_or_address_is_one(
    database: Database, serving: Client, callers: Callers, journal: Journal, senders: tuple[str, str]
) -> None:
    """B19: identity is the provider's message id in the resolved thread."""
    chat = serving(database)
    first = deliver(callers, chat, "request-1", senders[0])
    second = deliver(callers, chat, "request-2", senders[1])
    assert (type(first), type(second), second.seq) == (Answered, AlreadyAnswered, first.seq)
    assert len(journal.enters()) == 1
    assert len(message_rows(database, "person")) == 1
    assert_invariants(database, chat, told=callers.told)


def test_envelope_inside_the_payload_is_a_conflict_not_a_second_answer(
    database: Database, serving: Client, callers: Callers
) -> None:
    """B19: an adapter that stores the envelope is told so: same id, other payload, nothing written."""
    chat = serving(database)
    callers.ask(chat, "person", {"request": 1, "text": "hello"}, message_id="provider-1")
    again = callers.ask(chat, "person", {"request": 2, "text": "hello"}, message_id="provider-1")
    assert again == Conflict(message_id="provider-1", seq=1)
    assert len(message_rows(database, "person")) == 1
    assert_invariants(database, chat, told=callers.told)


# -- B20: one message as two kinds of event ----------------------------------------------------------------------------
EVENTS = {
    "mention": {"event": "E1", "kind": "mention", "channel": "C", "ts": "17.5", "text": "@bot hello"},
    "message": {"event": "E2", "kind": "message", "channel": "C", "ts": "17.5", "text": "@bot hello"},
}


def receive(callers: Callers, chat: Chatlock, event: dict[str, str], ignored: str | None, **options: Any) -> None:
    """An adapter: it drops a kind that it is told to ignore before it submits anything."""
    if event["kind"] != ignored:
        callers.ask(chat, event["channel"], event["text"], message_id=f"{event['channel']}-{event['ts']}", **options)


@pytest.mark.parametrize("ignored", [None, "message", "mention"])
@pytest.mark.parametrize("order", [("mention", "message"), ("message", "mention")], ids="-".join)
def test_message_that_comes_as_two_events_is_answered_once(
    database: Database,
    serving: Client,
    callers: Callers,
    journal: Journal,
    order: tuple[str, str],
    ignored: str | None,
) -> None:
    """B20: one turn in either order, also where one kind is ignored: ignoring it does not use up the id."""
    chat = serving(database)
    for kind in order:
        receive(callers, chat, EVENTS[kind], ignored)
    assert [e.ids for e in journal.enters()] == [("C-17.5",)]
    assert len(callers.replies("C")) == 1
    assert_invariants(database, chat, told=callers.told)


def test_refused_copy_does_not_use_up_the_id(
    database: Database, serving: Client, agent: Agent, callers: Callers
) -> None:
    """B20: a copy that policy refuses leaves no trace; the other copy is accepted under the same id."""
    chat = serving(database)
    gate = agent.hold("C")
    first = callers.submit(chat, "C", "before")
    gate.wait_entered()
    refused = chat.submit("C", "@bot hello", message_id="C-17.5", policy="reject")
    assert isinstance(refused, Busy)
    assert len(message_rows(database, "C")) == 1
    receive(callers, chat, EVENTS["mention"], None, wait_ms=0)
    gate.open()
    first.result(SECONDS_MAX)
    quiesce(chat, database)
    receive(callers, chat, EVENTS["message"], None)
    assert isinstance(callers.told[-1][1], AlreadyAnswered)
    assert_invariants(database, chat, told=callers.told)


# -- B21: accepted and stored are one ----------------------------------------------------------------------------------
@pytest.mark.parametrize("reposts", [False, True], ids=["client_retries", "caller_reposts"])
@pytest.mark.parametrize("do", ["cut_before", "cut_after"])
def test_message_whose_commit_was_cut_off_is_answered_once(
    pg_database: Database,
    serving: Client,
    callers: Callers,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    do: Any,
    reposts: bool,
) -> None:
    """B21: the wire is cut before the intake's commit, or after it and before its answer; then it is posted again."""
    with Proxy(pg_database.url) as wire:
        chat = serving(pg_database, url=wire.url, heartbeat=False)
        callers.ask(chat, "thread", "before")
        Points(chat)  # under pause points the hot statement has a COMMIT of its own
        wire.on(b"cut-off", b"COMMIT", do=do)
        if reposts:
            with monkeypatch.context() as patch:
                patch.setattr(executor, "RECONNECTS_MAX", 0)
                assert isinstance(callers.ask(chat, "thread", "hello", message_id="cut-off"), Unknown)
        outcome = callers.ask(chat, "thread", "hello", message_id="cut-off", wait_ms=0)
        if reposts and do == "cut_after":
            assert outcome == Queued(message_id="cut-off", seq=2, position=0, turn=2)
            age_claim(pg_database, "thread")
            assert reclaim_aged(chat) == 1
            quiesce(chat, pg_database)
            outcome = callers.ask(chat, "thread", "hello", message_id="cut-off")
            assert isinstance(outcome, AlreadyAnswered)
        else:
            assert isinstance(outcome, Answered)
        assert [e.ids for e in journal.enters()][1:] == [("cut-off",)]
        assert_invariants(pg_database, chat, journal=journal, told=callers.told)


def accept_until(database: Database, number: int) -> None:
    """A process that is stopped before its `number`-th statement of intake, or at last in its turn."""
    with Chatlock(database.url, tenant=TENANT, poller=False) as chat:
        chat.handler()(lambda turn: stop_here("its turn"))
        stop_at_statement(chat, number)
        chat.submit(f"thread-{number}", "hello", message_id="m1")


def test_message_of_a_process_killed_between_any_two_statements_is_answered_once(
    database: Database, serving: Client, callers: Callers, child: Keep, journal: Journal
) -> None:
    """B21: after a kill before each statement of intake the sender posts again: stored once, answered once."""
    number, where = 0, ""
    while "its turn" not in where:
        number += 1
        killed = child(Child.fork(lambda n=number: accept_until(database, n)))
        where = killed.wait_for("stopped at")
        killed.kill()
    assert number > 2, "too few statements were seen"
    chat = serving(database, heartbeat=False)
    for n in range(1, number + 1):
        thread = f"thread-{n}"
        outcome = callers.ask(chat, thread, "hello", message_id="m1", wait_ms=0)
        if isinstance(outcome, Queued):  # stored, and claimed by the dead
            assert thread_row(database, thread)["status"] == "running"
            age_claim(database, thread)
        else:
            assert isinstance(outcome, Answered)
    assert isinstance(outcome, Queued)
    assert reclaim_aged(chat) >= 1
    quiesce(chat, database)
    assert sorted(e.thread for e in journal.enters()) == sorted(f"thread-{n}" for n in range(1, number + 1))
    assert_invariants(database, chat, journal=journal, told=callers.told)


# -- B22: retention ----------------------------------------------------------------------------------------------------
def purge_while_one_runs(
    database: Database, chat: Chatlock, agent: Agent, callers: Callers
) -> tuple[Gate, Future[Outcome], list[str | None]]:
    """m0 is answered, m1 is in a held turn, m2 waits, and all are ten years old: the payloads after a purge."""
    callers.ask(chat, "thread", "zero", message_id="m0")
    gate = agent.hold("thread")
    first = callers.submit(chat, "thread", "one", message_id="m1")
    gate.wait_entered()
    callers.ask(chat, "thread", "two", message_id="m2", wait_ms=0)
    for message_id in ("m0", "m1", "m2"):
        age_message(database, message_id, DECADE_MS)
    rows(database, "UPDATE chatlock_turns SET ended_at = ended_at - :ms WHERE state = 'done'", ms=DECADE_MS)
    assert chat.purge(older_than_ms=1_000) > 0
    return gate, first, [message["payload"] for message in message_rows(database, "thread")]


def test_purge_never_touches_a_message_that_runs_or_waits(
    database: Database, serving: Client, agent: Agent, callers: Callers, journal: Journal
) -> None:
    """B22: records far past any retention are kept while their message is not resolved; a late copy gets its state."""
    chat = serving(database)
    gate, first, payloads = purge_while_one_runs(database, chat, agent, callers)
    assert payloads == [None, '"one"', '"two"']
    running = callers.ask(chat, "thread", "one", message_id="m1", wait_ms=0)
    waiting = callers.ask(chat, "thread", "two", message_id="m2", wait_ms=0)
    assert running == Queued(message_id="m1", seq=2, position=0, turn=2)
    assert waiting == Queued(message_id="m2", seq=3, position=1)
    gate.open()
    assert isinstance(first.result(SECONDS_MAX), Answered)
    quiesce(chat, database)
    assert [e.ids for e in journal.enters()] == [("m0",), ("m1",), ("m2",)]
    assert_invariants(database, chat, journal=journal, told=callers.told[1:])


def test_control_a_purge_by_age_alone_forgets_what_still_waits(
    database: Database, serving: Client, agent: Agent, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of B22: without the guard of resolved messages the waiting ones lose their payloads."""
    by_age = update(messages).where(of_incarnation(messages), messages.c.received_at < b("horizon"))
    monkeypatch.setattr(purge, "FORGET_PAYLOADS", by_age.values(payload=None))
    gate, first, payloads = purge_while_one_runs(database, serving(database), agent, callers)
    assert payloads == [None, None, None]
    gate.open()
    first.result(SECONDS_MAX)


def test_purge_reaches_every_turn_of_many_that_ended_together(
    database: Database, serving: Client, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B22: retention works in batches; none of the turns of one millisecond is skipped at the edge of a batch."""
    monkeypatch.setattr(admin, "PURGE_BATCH", 2)
    chat = serving(database)
    for number in range(5):
        callers.ask(chat, f"thread-{number}", "hello")
    rows(database, "UPDATE chatlock_turns SET ended_at = 1000")
    rows(database, "UPDATE chatlock_messages SET received_at = 1000")
    chat.purge(older_than_ms=1_000)
    assert not rows(database, "SELECT 1 FROM chatlock_messages WHERE payload IS NOT NULL")


def test_purged_message_is_still_known(database: Database, serving: Client, callers: Callers, journal: Journal) -> None:
    """B22: purge forgets payload and reply, never the id: a copy that comes years later is not answered again."""
    chat = serving(database)
    callers.ask(chat, "thread", "one", message_id="m1")
    rows(database, "UPDATE chatlock_turns SET ended_at = ended_at - :ms", ms=DECADE_MS)
    age_message(database, "m1", DECADE_MS)
    assert chat.purge(older_than_ms=1_000) > 0
    assert message_rows(database, "thread")[0]["payload"] is None
    again = chat.submit("thread", "one", message_id="m1")
    assert again == AlreadyAnswered(message_id="m1", seq=1, reply=None, turn=1)
    assert isinstance(chat.submit("thread", "other", message_id="m1"), Conflict)
    assert len(journal.enters()) == 1
    assert chat.verify().ok
