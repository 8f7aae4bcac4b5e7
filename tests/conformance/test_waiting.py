"""How a call waits for its message: by one shared look, without a connection, until its deadline."""

from __future__ import annotations

from typing import Any

import pytest

from chatlock import (
    AlreadyAnswered,
    Answered,
    Busy,
    Cancelled,
    Dead,
    Gone,
    InvalidInput,
    Limits,
    Parked,
    Queued,
    Superseded,
)
from chatlock.errors import Closed, StoreUnavailable
from chatlock.inputs import Key
from chatlock.ops.base import lock
from chatlock.ops.inspect import look, standings
from tests.conformance import rows
from tests.conformance.clocks import now
from tests.conformance.conftest import BOTH, NewChat, Start
from tests.support.databases import Database
from tests.support.waiting import SECONDS_MAX, Gate, until

pytestmark = BOTH

LONG_MS = SECONDS_MAX * 1000


def waits(chat: Any, count: int = 1) -> None:
    """Until `count` messages of this client are waited for."""
    armed = lambda: sum(w.waited is not None for ws in chat._flows.waiters._by_key.values() for w in ws)  # noqa: E731
    until(lambda: armed() == count)


def seen_pending(chat: Any, count: int) -> None:
    """Until the shared look has seen the messages of all `count` waiters pending."""
    waiters = chat._flows.waiters
    until(lambda: sum(w.pending_at is not None for ws in list(waiters._by_key.values()) for w in ws) == count)


def test_call_from_another_context_waits_until_its_deadline(chat: Any, start: Start) -> None:
    with chat.turn("c1", "hello") as turn:
        outcome = start(lambda: chat.submit("c1", "more", message_id="m2", wait_ms=1)).result(SECONDS_MAX)
        assert outcome == chat.status("c1", "m2") == Queued(message_id="m2", seq=2, position=1)
        turn.finish("ok")


def test_turn_that_is_handed_back_again_and_again_is_not_run_at_once_each_time(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time whoever waits is woken; then it finds the thread by its next look, and does not run it hot."""
    told: list[bool] = []
    monkeypatch.setattr(chat._flows, "changed", lambda key, *, due, elsewhere: told.append(due))
    chat.begin("c1", "hello", message_id="m1").release()
    assert told == [True]
    for _ in range(2):
        chat.begin("c1", "hello", message_id="m1").release()
    assert told == [True]
    with pytest.raises(ZeroDivisionError), chat.turn("c1", "hello", message_id="m1"):
        raise ZeroDivisionError
    chat.begin("c1", "hello", message_id="m1").release()
    assert told == [True, True, True]


def test_turn_that_is_handed_back_because_it_was_asked_to_stop_wakes_at_once(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat.begin("c1", "hello", message_id="m1").release()
    turn = chat.begin("c1", "hello", message_id="m1")
    chat.submit("c1", "no, wait", message_id="m2", policy="interrupt", wait_ms=0)
    told: list[bool] = []
    monkeypatch.setattr(chat._flows, "changed", lambda key, *, due, elsewhere: told.append(due))
    assert turn.cancelled
    turn.release()
    assert told == [True]


def test_submit_from_inside_a_turn_of_its_thread_never_waits(chat: Any) -> None:
    chat.handler()(lambda turn: "ok")
    with chat.turn("c1", "hello") as turn:
        assert isinstance(chat.submit("c1", "more", wait_ms=None), Queued)
        turn.finish("ok")


def test_submit_of_whoever_holds_a_turn_that_began_never_waits(chat: Any) -> None:
    turn = chat.begin("c1", "hello")
    assert isinstance(chat.submit("c1", "more", wait_ms=None), Queued)
    turn.finish("ok")
    chat.handler()(lambda turn: "ok")
    assert isinstance(chat.submit("c1", "again", wait_ms=None), Answered)


def test_submit_from_inside_a_handler_of_its_thread_never_waits(chat: Any, new_chat: NewChat) -> None:
    other = new_chat()
    told: list[Any] = []

    def handler(turn: Any) -> str:
        told.append(chat_in_handler.submit(turn.key.thread, "more", wait_ms=None))
        return "ok"

    chat_in_handler = other if hasattr(other, "chat") else chat
    chat.handler()(handler)
    assert isinstance(chat.submit("c1", "hello"), Answered)
    assert isinstance(told[0], Queued)


def test_waiting_call_is_told_when_another_client_answers(new_chat: NewChat, start: Start) -> None:
    here, there = new_chat(), new_chat()
    waiting = start(lambda: here.submit("c1", "hello", message_id="m1", wait_ms=LONG_MS))
    waits(here)
    with there.turn("c1", "hello", message_id="m1") as turn:
        turn.finish("from there")
    assert waiting.result(SECONDS_MAX) == AlreadyAnswered(message_id="m1", seq=1, reply="from there", turn=1)


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda there: there.cancel("c1", "m1"), Cancelled),
        (lambda there: there.cancel("c1", "m2"), Cancelled),
        (lambda there: there.submit("c1", "last", policy="latest", wait_ms=0), Superseded),
        (lambda there: there.park("c1", turn=1), Parked),
        (lambda there: there.delete("c1"), Gone),
    ],
    ids=["cancel the head", "cancel behind it", "supersede", "park", "delete"],
)
def test_waiting_call_is_told_what_another_client_did_to_its_message(
    new_chat: NewChat, start: Start, act: Any, told: type
) -> None:
    """No wake comes from there: the regular look finds it, also behind a turn that runs on and a head that stays."""
    here, there = new_chat(), new_chat()
    there.begin("c1", "first")
    calls = []
    for number in (1, 2):
        calls.append(start(lambda n=number: here.submit("c1", "hello", message_id=f"m{n}", wait_ms=LONG_MS)))
        waits(here, number)
    seen_pending(here, 2)
    act(there)
    until(lambda: any(call.done() for call in calls))
    assert {type(call.result()) for call in calls if call.done()} == {told}
    there.delete("c1")
    assert {type(call.result(SECONDS_MAX)) for call in calls} <= {told, Gone}


def test_look_tells_what_is_resolved_or_out_of_service(chat: Any) -> None:
    threads = ("in a turn", "waiting", "answered", "cancelled", "parked", "deleted")
    for thread in threads:
        chat.submit(thread, "hello", message_id="m1", wait_ms=0)
    chat.begin("in a turn", "hello", message_id="m1")
    chat.begin("answered", "hello", message_id="m1").finish("ok")
    chat.cancel("cancelled", "m1")
    chat.park("parked")
    chat.delete("deleted")
    seen = chat._flows.waiters._looker([(chat._flows.config.tenant, thread, 1, 1) for thread in threads])
    looks = {thread: (look.resolved, look.claimable) for (_, thread, _, _), look in seen.items()}
    assert looks == dict.fromkeys(threads, (True, False)) | {"in a turn": (False, False), "waiting": (False, True)}


def test_regular_look_reads_no_message_while_the_thread_stands_as_before(chat: Any, start: Start) -> None:
    with chat.turn("c1", "first") as turn:
        waiting = start(lambda: chat.submit("c1", "second", wait_ms=LONG_MS))
        waits(chat)
        seen_pending(chat, 1)
        reads: list[str] = []
        chat._executor.points = reads.append
        until(lambda: reads.count("look.threads.begin") >= 3)
        chat._executor.points = None
        assert "look.begin" not in reads
        turn.fetch()
        turn.finish("ok")
    assert isinstance(waiting.result(SECONDS_MAX), AlreadyAnswered)


def test_waiting_call_is_told_that_its_message_is_dead(new_chat: NewChat, start: Start) -> None:
    chat = new_chat(limits=Limits(attempts_max=1))
    waiting = start(lambda: chat.submit("c1", "hello", message_id="m1", wait_ms=LONG_MS))
    waits(chat)
    with pytest.raises(RuntimeError), chat.turn("c1", "hello", message_id="m1"):
        raise RuntimeError("not today")
    assert waiting.result(SECONDS_MAX) == Dead(message_id="m1", seq=1, reason="RuntimeError")


@pytest.mark.parametrize(
    ("not_before", "quiet_until", "may_start"),
    [
        (0, 0, True),
        (30_000, 0, False),
        (9_000_000, 0, True),
        (0, 3_600_000, False),
        (9_000_000, 30_000, False),
        (0, 9_000_000, True),
    ],
)
def test_look_finds_a_thread_claimable_once_it_may_start(
    chat: Any, database: Database, not_before: int, quiet_until: int, may_start: bool
) -> None:
    """A backoff or a debounce beyond its maximum counts as passed, because the clock has stepped."""
    chat.submit("c1", "hello", wait_ms=0)
    at = now(database)
    moved = f"not_before = {at + not_before}, quiet_until = {at + quiet_until}"
    rows.execute(database, f"UPDATE chatlock_threads SET {moved}")
    key, waited, far = Key("t", "c1"), ("t", "c1", 1, 1), chat._flows.config.limits.backoff_max_ms
    (looked,) = chat._executor.read("look", lambda c: look(c, [waited], far)).values()
    (standing,) = chat._executor.read("look", lambda c: standings(c, [key], far)).values()
    assert (looked.claimable, looked.standing, standing.may_start) == (may_start, standing, may_start)
    assert chat._executor.transaction("submit", lambda c: (row := lock(c, key)).starts_at(far) <= row.now) == may_start


def test_waiting_call_runs_the_turn_that_became_free(chat: Any, start: Start) -> None:
    with chat.turn("c1", "first") as turn:
        chat.handler()(lambda turn: [m.payload for m in turn.messages])
        waiting = start(lambda: chat.submit("c1", "second", wait_ms=LONG_MS))
        waits(chat)
        turn.finish("ok")
    assert waiting.result(SECONDS_MAX).reply == ["second"]


def test_waiting_call_retries_its_own_failed_turn(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(backoff_ms=1))
    runs: list[int] = []

    def fails_once(turn: Any) -> str:
        runs.append(turn.token)
        if len(runs) == 1:
            raise RuntimeError("not today")
        return "ok"

    chat.handler()(fails_once)
    assert chat.submit("c1", "hello").reply == "ok"
    assert runs == [1, 2]


def test_submit_never_raises_the_error_of_the_handler(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(attempts_max=1))
    chat.handler()(lambda turn: 1 / 0)
    assert isinstance(chat.submit("c1", "hello"), Dead)


def test_failed_turn_without_waiting_leaves_the_message_queued(chat: Any, database: Database) -> None:
    chat.handler()(lambda turn: 1 / 0)
    assert chat.submit("c1", "hello", message_id="m1", wait_ms=0) == Queued(message_id="m1", seq=1, position=0)
    assert rows.thread_row(database)["attempts"] == 1


def test_waiters_of_one_thread_are_all_answered_in_order(chat: Any, start: Start) -> None:
    gate, seen = Gate(), []

    def handler(turn: Any) -> str:
        if not seen:
            gate.hold()
        seen.extend(m.payload for m in turn.messages)
        return "ok"

    chat.handler()(handler)
    first = start(lambda: chat.submit("c1", 0))
    gate.wait_entered()
    others = []
    for n in (1, 2, 3):
        others.append(start(lambda n=n: chat.submit("c1", n, wait_ms=LONG_MS)))
        waits(chat, n)
    gate.open()
    outcomes = [call.result(SECONDS_MAX) for call in (first, *others)]
    assert all(isinstance(outcome, Answered | AlreadyAnswered) for outcome in outcomes)
    assert seen == [0, 1, 2, 3]
    assert sum(isinstance(outcome, Answered) for outcome in outcomes) == 2


def test_submit_to_a_free_thread_with_a_queue_does_not_wait_for_a_look(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat.submit("c1", "first", wait_ms=0)
    chat.handler()(lambda turn: [m.payload for m in turn.messages])
    monkeypatch.setattr(chat._flows.waiters, "_look", lambda chosen: None)
    assert chat.submit("c1", "second", wait_ms=LONG_MS).reply == ["first", "second"]


def test_waiting_holds_no_connection(new_chat: NewChat, start: Start) -> None:
    chat = new_chat(pool_size=1)
    with chat.turn("c1", "hello") as turn:
        calls = [start(lambda: chat.submit("c1", "more", wait_ms=LONG_MS)) for _ in range(8)]
        waits(chat, 8)
        assert chat._executor.engine.pool.checkedout() <= 1
        turn.fetch()
        turn.finish("ok")
    assert {type(call.result(SECONDS_MAX)) for call in calls} == {AlreadyAnswered}


def test_waiters_of_one_client_share_one_look(chat: Any, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    looker = chat._flows.waiters._looker

    def counted(waited: Any) -> Any:
        looks.append(len(waited))
        return looker(waited)

    monkeypatch.setattr(chat._flows.waiters, "_looker", counted)
    calls = [start(lambda n=n: chat.submit(f"c{n}", n, message_id="m", wait_ms=LONG_MS)) for n in range(10)]
    waits(chat, 10)
    until(lambda: 10 in looks)
    for n in range(10):
        chat.cancel(f"c{n}", "m")
    assert {type(call.result(SECONDS_MAX)) for call in calls} == {Cancelled}


def test_look_that_fails_is_tried_again(chat: Any, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    looker, failures = chat._flows.waiters._looker, [RuntimeError("a defect"), StoreUnavailable("away")]

    def failing(waited: Any) -> Any:
        if failures:
            raise failures.pop()
        return looker(waited)

    monkeypatch.setattr(chat._flows.waiters, "_looker", failing)
    waiting = start(lambda: chat.submit("c1", "hello", message_id="m1", wait_ms=LONG_MS))
    waits(chat)
    chat.cancel("c1", "m1")
    assert isinstance(waiting.result(SECONDS_MAX), Cancelled)
    assert not failures


def test_close_tells_a_waiting_call(new_chat: NewChat, start: Start) -> None:
    chat = new_chat()
    waiting = start(lambda: chat.submit("c1", "hello", wait_ms=None))
    waits(chat)
    chat._close(0)
    with pytest.raises(Closed):
        waiting.result(SECONDS_MAX)


def test_negative_wait_is_refused_before_anything_is_written(chat: Any, database: Database) -> None:
    before = rows.dump(database)
    with pytest.raises(InvalidInput, match="wait_ms"):
        chat.submit("c1", "hello", wait_ms=-1)
    assert rows.dump(database) == before


def test_busy_never_waits(chat: Any) -> None:
    with chat.turn("c1", "hello") as turn:
        assert isinstance(chat.submit("c1", "more", policy="reject", wait_ms=None), Busy)
        turn.finish("ok")
