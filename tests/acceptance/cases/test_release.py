"""The end of a turn: nothing behind it is lost, nothing runs twice, and only the owner can end it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from chatlock import AlreadyAnswered, Answered, Cancelled, Chatlock, ClaimLost, Dead, Limits, Queued, Turn
from chatlock.ops import hot
from tests.acceptance.cases.recovery import LATE, STILL, dispositions, dump, now_ms, turn_states
from tests.acceptance.cases.support import (
    SECONDS_MAX,
    TENANT,
    Points,
    Proxy,
    age_claim,
    assert_invariants,
    message_rows,
    quiesce,
    reclaim_aged,
    rows,
    stop_here,
    thread_row,
    until,
    wait_blocked,
)
from tests.support.processes import Child
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from chatlock import Outcome
    from tests.acceptance.cases.support import Agent, Callers, Journal
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]
    Keep = Callable[[Child], Child]


# -- B29: follow-ups behind a turn that does not answer ----------------------------------------------------------------
def queue_behind(chat: Chatlock) -> None:
    """Two messages behind the held turn."""
    for message_id in ("m2", "m3"):
        queued = chat.submit("thread", message_id, message_id=message_id, wait_ms=0)
        assert isinstance(queued, Queued)


@pytest.mark.parametrize("ending", ["exception", "timeout"])
def test_follow_ups_run_when_the_handler_ends_in_an_error(
    database: Database, client: Client, callers: Callers, ending: str
) -> None:
    """B29: a message whose own turns fail becomes dead, and that is recorded; those behind it are answered in order."""
    gate = Gate()
    chat = client(database, limits=Limits(attempts_max=2))

    async def answer(turn: Any) -> str:
        if turn.messages[0].message_id == "m1":
            await gate.hold_async()
            if ending == "exception":
                raise RuntimeError
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        return "answer"

    chat.handler()(answer)
    first = callers.submit(chat, "thread", "m1", message_id="m1", wait_ms=0)
    gate.wait_entered()
    queue_behind(chat)
    gate.open()
    assert isinstance(first.result(SECONDS_MAX), Queued)
    quiesce(chat, database)
    error = {"exception": "RuntimeError", "timeout": "TimeoutError"}[ending]
    assert chat.status("thread", "m1") == Dead(message_id="m1", seq=1, reason=error)
    assert dispositions(database) == {"m1": "dead", "m2": "answered", "m3": "answered"}
    assert turn_states(database) == ["failed", "gave_up", "done"]
    assert_invariants(database, chat, told=callers.told)


@pytest.mark.parametrize("ending", ["operator", "reclaim"])
def test_follow_ups_run_when_the_turn_is_ended_from_outside(
    database: Database, serving: Client, agent: Agent, callers: Callers, ending: str
) -> None:
    """B29: freed by an operator, or reclaimed, the turn's own message and those behind it are answered in order."""
    chat = serving(database, limits=STILL)
    gate = agent.hold("thread")
    first = callers.submit(chat, "thread", "m1", message_id="m1", wait_ms=0)
    gate.wait_entered()
    queue_behind(chat)
    if ending == "operator":
        assert chat.free("thread", turn=1, force=True).done
    else:
        age_claim(database, "thread")
        assert reclaim_aged(chat) == 1
    quiesce(chat, database)
    gate.open()
    first.result(SECONDS_MAX)
    assert dispositions(database) == {"m1": "answered", "m2": "answered", "m3": "answered"}
    assert turn_states(database) == [{"operator": "released", "reclaim": "reclaimed"}[ending], "done"]
    assert_invariants(database, chat, told=callers.told)


def test_follow_ups_run_when_the_process_is_killed(
    database: Database, serving: Client, callers: Callers, child: Keep
) -> None:
    """B29: kill -9 inside the handler."""

    def work() -> None:
        chat = Chatlock(database.url, tenant=TENANT, poller=False)
        chat.handler()(lambda turn: stop_here("handler"))
        chat.submit("thread", "m1", message_id="m1")

    process = child(Child.fork(work))
    process.wait_for("stopped at handler")
    chat = serving(database)
    queue_behind(chat)
    process.kill()
    age_claim(database, "thread")
    assert reclaim_aged(chat) == 1
    quiesce(chat, database)
    assert dispositions(database) == {"m1": "answered", "m2": "answered", "m3": "answered"}
    assert turn_states(database)[0] == "reclaimed"
    assert_invariants(database, chat)


# -- B30: merged into the running turn and run again -------------------------------------------------------------------
@pytest.mark.parametrize("moment", ["while the turn runs", "after it committed"])
def test_message_taken_by_another_turn_is_not_run_again(
    database: Database,
    serving: Client,
    agent: Agent,
    callers: Callers,
    moment: str,
) -> None:
    """B30: its own waiter and a poller both decided to claim before the turn that took it began.

    Their attempts are let go while that turn runs, or after its commit: either way both learn what it did.
    """
    runner, waiter, poller = (serving(database) for _ in range(3))
    first, second = agent.hold("thread"), agent.hold("thread")
    callers.submit(runner, "thread", "same", message_id="m1", wait_ms=0)
    first.wait_entered()
    waiting = callers.submit(waiter, "thread", "same", message_id="m2")
    until(lambda: len(message_rows(database, "thread")) == 2, what="m2")
    claims = [Points(waiter).hold("claim.begin"), Points(poller).hold("claim_due.begin")]
    assert runner.free("thread", turn=1, force=True).done
    swept = callers.call(poller.sweep_once)
    for claim in claims:
        claim.wait_entered()
    again = callers.submit(runner, "thread", "same", message_id="m1", wait_ms=0)
    second.wait_entered()
    if moment == "while the turn runs":
        for claim in claims:
            claim.open()
        assert swept.result(SECONDS_MAX).turns == 0
        assert not waiting.done()
    third = runner.submit("thread", "same", message_id="m3", wait_ms=0)
    assert isinstance(third, Queued)
    second.open()
    answer = again.result(SECONDS_MAX)
    assert isinstance(answer, Answered)
    for claim in claims:
        claim.open()
    assert waiting.result(SECONDS_MAX) == AlreadyAnswered(message_id="m2", seq=2, reply=answer.reply, turn=answer.turn)
    swept.result(SECONDS_MAX)
    first.open()
    quiesce(runner, database)
    answered_by = {m["message_id"]: m["turn_token"] for m in message_rows(database, "thread")}
    assert answered_by["m1"] == answered_by["m2"] == answer.turn
    assert answered_by["m3"] != answer.turn
    assert turn_states(database) == ["released", "done", "done"]
    assert_invariants(database, runner, told=callers.told)


def test_message_fetched_in_mid_turn_is_answered_once_and_its_equal_separately(
    database: Database, client: Client, callers: Callers, journal: Journal
) -> None:
    """B30: m2 is fetched by the running turn; m3, with the same text, came after that fetch."""
    holder, other = client(database), client(database)
    before, after = Gate(), Gate()

    def answer(turn: Turn) -> list[str]:
        journal.write("enter", turn)
        if turn.token == 1:
            before.hold()
            turn.fetch()
            after.hold()
        journal.write("leave", turn)
        return [message.message_id for message in turn.messages]

    for chat in (holder, other):
        chat.handler()(answer)
    first = callers.submit(holder, "thread", "one", message_id="m1")
    before.wait_entered()
    second = callers.submit(other, "thread", "same", message_id="m2")
    until(lambda: len(message_rows(database, "thread")) == 2, what="m2")
    before.open()
    after.wait_entered()
    third = callers.submit(other, "thread", "same", message_id="m3")
    until(lambda: len(message_rows(database, "thread")) == 3, what="m3")
    assert other.sweep_once().turns == 0
    after.open()
    assert first.result(SECONDS_MAX).reply == ["m1", "m2"]
    assert second.result(SECONDS_MAX) == AlreadyAnswered(message_id="m2", seq=2, reply=["m1", "m2"], turn=1)
    assert third.result(SECONDS_MAX) == Answered(message_id="m3", seq=3, reply=["m3"], turn=2)
    quiesce(other, database)
    assert_invariants(database, other, journal=journal, told=callers.told)


# -- B31: a message arrives exactly at release -------------------------------------------------------------------------
ORDERS = [
    "submit, finish",
    "finish, submit",
    "submit begins, finish, submit goes on",
    "finish begins, submit, finish goes on",
    "submit has the lock, finish waits",
    "finish has the lock, submit waits",
]


@pytest.mark.parametrize("order", ORDERS)
def test_message_that_arrives_at_release_is_served_or_due(
    database: Database, client: Client, serving: Client, agent: Agent, callers: Callers, journal: Journal, order: str
) -> None:
    """B31: all orders of the two transactions; without a poller the thread is due at once, and one sweep serves it."""
    for holder in ("caller", "sweep"):
        for submitter in ("runs turns", "only stores"):
            thread = f"{holder} holds, submitter {submitter}"
            holding, submitting = serving(database), (serving if submitter == "runs turns" else client)(database)
            gate = agent.hold(thread)
            if holder == "caller":
                held = callers.submit(holding, thread, "one", message_id="m1", wait_ms=0)
            else:
                assert isinstance(client(database).submit(thread, "one", message_id="m1", wait_ms=0), Queued)
                held = callers.call(holding.sweep_once)
            gate.wait_entered()
            finish = Finishing("finish_hot" if holder == "caller" else "finish", holding, gate, held)
            told = arrive(database, order, finish, submitting, callers, thread)
            row = thread_row(database, thread)
            assert row["status"] == "idle"
            if row["done_seq"] == 1:
                assert isinstance(told, Queued)
                due = rows(database, "SELECT thread_id FROM chatlock_due WHERE due_at <= :now", now=now_ms(database))
                assert due == [{"thread_id": thread}]
                assert holding.verify().ok
                assert serving(database).sweep_once().turns == 1
            assert dispositions(database, thread) == {"m1": "answered", "m2": "answered"}
    quiesce(holding, database)
    assert_invariants(database, holding, journal=journal, told=callers.told)


class Finishing(NamedTuple):
    """A held turn that is about to finish: by which operation, on which client, its gate, and its end."""

    op: str
    chat: Chatlock
    gate: Gate
    ended: Future[Any]


def arrive(
    database: Database, order: str, finish: Finishing, submitting: Chatlock, callers: Callers, thread: str
) -> Outcome:
    """Forces one order of the finish and of m2's submit; returns what the submitter was told."""
    of_finish, of_submit = Points(finish.chat), Points(submitting)
    gate, held = finish.gate, finish.ended

    def submit() -> Future[Outcome]:
        return callers.submit(submitting, thread, "two", message_id="m2", wait_ms=0)

    match order:
        case "submit, finish":
            stored = submit()
            stored.result(SECONDS_MAX)
            gate.open()
        case "finish, submit":
            gate.open()
            held.result(SECONDS_MAX)
            stored = submit()
        case "submit begins, finish, submit goes on":
            begun = of_submit.hold("submit_hot.begin")
            stored = submit()
            begun.wait_entered()
            gate.open()
            held.result(SECONDS_MAX)
            begun.open()
        case "finish begins, submit, finish goes on":
            begun = of_finish.hold(f"{finish.op}.begin")
            gate.open()
            begun.wait_entered()
            stored = submit()
            stored.result(SECONDS_MAX)
            begun.open()
        case "submit has the lock, finish waits":
            locked = of_submit.hold("submit_hot.commit")
            stored = submit()
            locked.wait_entered()
            gate.open()
            wait_blocked(database, of_finish, finish.op)
            locked.open()
        case "finish has the lock, submit waits":
            locked = of_finish.hold(f"{finish.op}.commit")
            gate.open()
            locked.wait_entered()
            stored = submit()
            wait_blocked(database, of_submit, "submit_hot")
            locked.open()
        case _:
            raise AssertionError(order)
    held.result(SECONDS_MAX)
    return stored.result(SECONDS_MAX)


def test_finish_that_leaves_no_due_row_is_found(
    pg_database: Database,
    client: Client,
    serving: Client,
    agent: Agent,
    callers: Callers,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B31's control: without the due row of the finish the thread would be silent."""
    silent = hot.S2_POSTGRESQL.replace("FROM u, l WHERE u.last_seq>%(upto)s", "FROM u, l WHERE false")
    assert silent != hot.S2_POSTGRESQL
    monkeypatch.setattr(hot, "S2_POSTGRESQL", silent)
    with pytest.raises(AssertionError, match=r"assert \[\] =="):
        test_message_that_arrives_at_release_is_served_or_due(
            pg_database, client, serving, agent, callers, journal, "submit, finish"
        )


# -- B32: delivered, yet the status stays running ----------------------------------------------------------------------
@pytest.mark.parametrize("end", ["hot finish", "hot finish with its own COMMIT", "locked finish", "fail", "release"])
def test_end_of_turn_whose_connection_is_cut_is_done_once(pg_database: Database, client: Client, end: str) -> None:
    """B32: the connection goes before the server saw the commit, or after it and before its answer."""
    for cut in ("cut_before", "cut_after"):
        with Proxy(pg_database.url) as wire:
            chat = client(pg_database, url=wire.url)
            turn = chat.begin(cut, "one", message_id="m1")
            assert isinstance(turn, Turn)
            if end == "locked finish":  # a resolved message above done_seq keeps the hot statement from matching
                chat.submit(cut, "two", message_id="m2", wait_ms=0)
                assert isinstance(chat.cancel(cut, "m2"), Cancelled)
            if end == "hot finish with its own COMMIT":
                Points(chat)
            marker = b"released" if end == "release" else b"cut-here"
            rule = wire.on(*([marker] if end == "hot finish" else [marker, b"COMMIT"]), do=cut)
            if end == "fail":
                turn.fail("cut-here")
            elif end == "release":
                turn.release()
            else:
                turn.finish("cut-here")
            rule.wait_entered()
            row = thread_row(pg_database, cut)
            assert (row["status"], row["claim_id"], row["token"]) == ("idle", None, turn.token)
            assert turn_states(pg_database, cut) == [{"fail": "failed", "release": "released"}.get(end, "done")]
            assert row["attempts"] == (end == "fail")
            chat.handler()(lambda turn: "answer")
            quiesce(chat, pg_database)
            assert_invariants(pg_database, chat)


def test_write_that_comes_after_the_release_is_refused(database: Database, client: Client) -> None:
    """B32: a late write of the turn that just ended, while the thread is idle and while the next turn runs."""
    chat = client(database)
    turn = chat.begin("thread", "one", message_id="m1")
    assert isinstance(turn, Turn)
    claim = turn._core.claim
    turn.finish("answer")
    for message_id in ("m2", "m3"):
        before = dump(database)
        for late, write in LATE.items():
            try:
                taken = write(chat, claim)
            except ClaimLost:
                taken = None
            assert not taken or late == "finish", late  # a finish that is repeated is told of its own success
        assert dump(database) == before
        chat.begin("thread", "two", message_id=message_id, wait_ms=0)
