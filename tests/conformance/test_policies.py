"""What a new message does to those that wait, when it is refused, and when a message has waited for too long."""

from __future__ import annotations

from typing import Any

import pytest

from chatlock import AlreadyAnswered, Answered, Debounce, Expired, InvalidInput, NotFound, Queued, Refused, Superseded
from chatlock.policies import QUIET_MAX_MS
from tests.conformance import rows
from tests.conformance.clocks import now
from tests.conformance.conftest import Start
from tests.conformance.messages import await_waiter, payloads, stored
from tests.support.databases import Database
from tests.support.waiting import SECONDS_MAX

pytestmark = pytest.mark.usefixtures("world")


# -- latest --
def test_latest_supersedes_what_waits_and_leaves_what_the_turn_holds(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1", message_id="m1") as turn:
        stored(chat, "m2", "m3")
        (told,) = stored(chat, "m4", policy="latest")
        assert told == Queued(message_id="m4", seq=4, position=1)
        assert chat.status("c1", "m2") == Superseded(message_id="m2", seq=2, by=4)
        assert chat.status("c1", "m3") == Superseded(message_id="m3", seq=3, by=4)
        turn.finish("one")
    assert rows.dispositions(database) == ["answered", "superseded", "superseded", "pending"]
    chat.handler()(payloads)
    assert chat.submit("c1", "m5").reply == ["m4", "m5"]


def test_latest_takes_the_place_of_an_idle_queue(chat: Any, database: Database) -> None:
    stored(chat, "m1", "m2")
    chat.handler()(payloads)
    assert chat.submit("c1", "m3", policy="latest").reply == ["m3"]
    assert rows.dispositions(database) == ["superseded", "superseded", "answered"]
    assert rows.thread_row(database)["holes"] == 0


def test_latest_leaves_what_was_fetched_in_mid_turn(chat: Any) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2")
        assert [m.payload for m in turn.fetch()] == ["m2"]
        stored(chat, "m3", policy="latest")
        turn.finish("both")
    assert isinstance(chat.status("c1", "m2"), AlreadyAnswered)
    assert isinstance(chat.status("c1", "m3"), Queued)


def test_waiter_is_told_that_its_message_was_superseded(chat: Any, start: Start) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2")
        waiting = start(lambda: chat.submit("c1", "m2", message_id="m2", wait_ms=None))
        stored(chat, "m3", policy="latest")
        assert waiting.result(SECONDS_MAX) == Superseded(message_id="m2", seq=2, by=3)
        turn.finish("one")


def test_wake_follows_what_was_superseded_and_no_other_message(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[Any] = []
    monkeypatch.setattr(chat._flows.waiters, "wake", woken.append)
    stored(chat, "m1")
    woken.clear()
    stored(chat, "m2", if_idle=True)
    assert woken == []
    stored(chat, "m3", policy="latest")
    assert [key.thread for key in woken] == ["c1"]


def test_latest_repeated_supersedes_nothing_more(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2", policy="latest")
        stored(chat, "m3")
        before = rows.dump(database)
        stored(chat, "m2", policy="latest")
        assert rows.dump(database) == before
        turn.finish("one")


# -- debounce --
FAR = Debounce(quiet_ms=600_000, max_wait_ms=1_200_000)


def test_debounced_messages_get_one_turn_once_it_is_quiet(chat: Any, database: Database) -> None:
    ran: list[Any] = []
    chat.handler()(lambda turn: ran.append(payloads(turn)))
    stored(chat, "m1", "m2", policy=FAR)
    row = rows.thread_row(database)
    assert (row["status"], row["not_before"]) == ("idle", 0)
    assert [due["due_at"] for due in rows.table(database, "chatlock_due")] == [row["quiet_until"]]
    chat.sweep_once()
    assert ran == []
    rows.execute(database, "UPDATE chatlock_threads SET quiet_until = 0")
    rows.execute(database, "UPDATE chatlock_due SET due_at = 0")
    chat.sweep_once()
    assert ran == [["m1", "m2"]]


def test_each_debounced_message_moves_the_start_up_to_the_longest_wait(chat: Any, database: Database) -> None:
    policy = Debounce(quiet_ms=10_000, max_wait_ms=50_000)

    def waits() -> int:
        stored(chat, f"m{len(rows.messages(database))}", policy=policy)
        first, *_, last = [row["received_at"] for row in rows.messages(database)] * 2
        until = int(rows.thread_row(database)["quiet_until"])
        return until - first if until == first + policy.max_wait_ms else until - int(last)

    def as_if_received_before(ms: int) -> None:
        rows.execute(database, f"UPDATE chatlock_messages SET received_at = received_at - {ms}")

    assert abs(waits() - 10_000) < 1_000  # two clocks of one transaction
    as_if_received_before(30_000)
    assert abs(waits() - 10_000) < 1_000
    as_if_received_before(15_000)
    assert waits() == 50_000


def test_waiter_runs_the_turn_once_it_is_quiet(chat: Any, database: Database, start: Start) -> None:
    chat.handler()(payloads)
    stored(chat, "m1", policy=FAR)
    waiting = start(lambda: chat.submit("c1", "m2", policy=FAR, wait_ms=None))
    await_waiter(chat)
    rows.execute(database, "UPDATE chatlock_threads SET quiet_until = 0")
    assert waiting.result(SECONDS_MAX).reply == ["m1", "m2"]


def test_quiet_time_outlives_the_message_that_asked_for_it(chat: Any, database: Database) -> None:
    stored(chat, "m1", policy=FAR)
    chat.cancel("c1", "m1")
    chat.handler()(payloads)
    assert isinstance(chat.submit("c1", "m2", wait_ms=1), Queued)
    (due,) = rows.table(database, "chatlock_due")
    assert due["due_at"] == rows.thread_row(database)["quiet_until"]


def test_start_that_is_overdue_is_not_put_off(chat: Any, database: Database) -> None:
    stored(chat, "m1")
    rows.execute(database, "UPDATE chatlock_messages SET received_at = 1")
    chat.handler()(payloads)
    assert chat.submit("c1", "m2", policy=FAR).reply == ["m1", "m2"]


def test_debounce_leaves_the_backoff_of_a_failed_message(chat: Any, database: Database) -> None:
    with pytest.raises(RuntimeError), chat.turn("c1", "m1"):
        raise RuntimeError
    before = rows.thread_row(database)
    stored(chat, "m2", policy=Debounce(quiet_ms=1, max_wait_ms=1))
    after = rows.thread_row(database)
    assert [after[name] for name in ("not_before", "attempts")] == [before[name] for name in ("not_before", "attempts")]
    (due,) = rows.table(database, "chatlock_due")
    assert due["due_at"] == after["not_before"] > 0


def test_dropped_message_does_not_move_the_start(chat: Any, database: Database) -> None:
    stored(chat, "m1", policy=Debounce(quiet_ms=10_000, max_wait_ms=600_000))
    before = rows.thread_row(database)["quiet_until"]
    (told,) = stored(chat, "m2", policy=FAR, pending_max=1, overflow="drop_newest")
    assert told == Superseded(message_id="m2", seq=2, by=None)
    assert rows.thread_row(database)["quiet_until"] == before > 0


def test_debounced_message_beside_a_turn_waits_after_its_end(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2", policy=FAR)
        turn.finish("one")
    (due,) = rows.table(database, "chatlock_due")
    assert due["due_at"] == rows.thread_row(database)["quiet_until"]


# -- attach --
def test_attached_caller_is_told_the_outcome_of_the_running_turn(chat: Any, database: Database, start: Start) -> None:
    with chat.turn("c1", "m1", message_id="m1") as turn:
        before = rows.dump(database)
        attached = start(lambda: chat.submit("c1", "m2", policy="attach", wait_ms=None))
        await_waiter(chat)
        now = chat.submit("c1", "m2", policy="attach", wait_ms=0)
        assert now == Queued(message_id="m1", seq=1, position=0, turn=turn.token)
        assert rows.dump(database) == before
        turn.finish("one")
        token = turn.token
    assert attached.result(SECONDS_MAX) == AlreadyAnswered(message_id="m1", seq=1, reply="one", turn=token)
    assert len(rows.messages(database)) == 1


def test_attached_caller_follows_the_message_when_its_turn_fails(chat: Any, database: Database, start: Start) -> None:
    chat.handler()(payloads)
    with chat.turn("c1", "m1", message_id="m1") as turn:
        attached = start(lambda: chat.submit("c1", "m2", policy="attach", wait_ms=None))
        await_waiter(chat)
        turn.fail("broke")
    rows.pass_backoff(database)
    chat.sweep_once()
    assert attached.result(SECONDS_MAX) == AlreadyAnswered(message_id="m1", seq=1, reply=["m1"], turn=2)


def test_attach_without_a_turn_is_refused_and_writes_nothing(chat: Any, database: Database) -> None:
    stored(chat, "m1")
    before = rows.dump(database)
    for thread, state in (("c1", "idle"), ("new", "absent")):
        told = chat.submit(thread, "m2", message_id="m2", policy="attach")
        assert told == Refused(message_id="m2", reason="no_turn", state=state)
    assert rows.dump(database) == before


def test_attach_has_no_use_for_a_transaction(chat: Any) -> None:
    with pytest.raises(InvalidInput):
        chat.submit("c1", "m1", policy="attach", conn=object())


# -- preconditions --
def test_if_idle_refuses_beside_a_turn_and_stores_in_an_idle_thread(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1") as turn:
        before = rows.dump(database)
        assert stored(chat, "m2", if_idle=True) == [Refused(message_id="m2", reason="not_idle", state="running")]
        assert rows.dump(database) == before
        turn.finish("one")
    chat.handler()(payloads)
    assert isinstance(chat.submit("c1", "m2", if_idle=True), Answered)
    assert isinstance(chat.submit("new", "m1", if_idle=True), Answered)


def test_if_turn_stores_beside_that_turn_alone(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1") as turn:
        token = turn.token
        assert stored(chat, "m2", if_turn=token) == [Queued(message_id="m2", seq=2, position=1)]
        before = rows.dump(database)
        (other,) = stored(chat, "m3", if_turn=token + 1)
        assert other == Refused(message_id="m3", reason="other_turn", state="running")
        assert rows.dump(database) == before
        turn.finish("one")
    before = rows.dump(database)
    for thread, state in (("c1", "idle"), ("new", "absent")):
        (ended,) = stored(chat, "m4", thread=thread, if_turn=token)
        assert ended == Refused(message_id="m4", reason="not_running", state=state)
    assert rows.dump(database) == before


def test_known_message_is_told_its_state_whatever_the_precondition(chat: Any) -> None:
    chat.handler()(payloads)
    chat.submit("c1", "m1", message_id="m1")
    with chat.turn("c1", "m2") as turn:
        assert isinstance(stored(chat, "m1", if_idle=True)[0], AlreadyAnswered)
        assert isinstance(stored(chat, "m1", if_turn=99)[0], AlreadyAnswered)
        turn.finish("two")


# -- caps --
def test_full_thread_refuses_and_stores_nothing(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2", "m3", pending_max=2)
        before = rows.dump(database)
        assert stored(chat, "m4", pending_max=2) == [Refused(message_id="m4", reason="full", state="running")]
        assert rows.dump(database) == before
        assert chat.status("c1", "m4") == NotFound(message_id="m4")
        assert len(turn.fetch()) == 2
        assert isinstance(stored(chat, "m4", pending_max=2)[0], Queued)
        turn.finish("three")


def test_full_thread_drops_the_oldest_that_no_turn_has(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2", "m3", "m4")
        (told,) = stored(chat, "m5", pending_max=2, overflow="drop_oldest")
        assert told == Queued(message_id="m5", seq=5, position=2)
        assert chat.status("c1", "m3") == Superseded(message_id="m3", seq=3, by=5)
        assert rows.dispositions(database) == ["pending", "superseded", "superseded", "pending", "pending"]
        turn.finish("one")
    chat.handler()(payloads)
    assert chat.submit("c1", "m6").reply == ["m4", "m5", "m6"]


def test_message_that_supersedes_all_others_finds_room(chat: Any) -> None:
    stored(chat, "m1", "m2")
    assert stored(chat, "m3", policy="latest", pending_max=1) == [Queued(message_id="m3", seq=3, position=0)]


def test_idle_queue_drops_its_head(chat: Any, database: Database) -> None:
    stored(chat, "m1", "m2")
    stored(chat, "m3", pending_max=1, overflow="drop_oldest")
    assert rows.dispositions(database) == ["superseded", "superseded", "pending"]
    assert (rows.thread_row(database)["done_seq"], rows.thread_row(database)["holes"]) == (2, 0)


def test_full_thread_drops_the_newest_and_keeps_its_id(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2")
        dropped = Superseded(message_id="m3", seq=3, by=None)
        assert stored(chat, "m3", pending_max=1, overflow="drop_newest") == [dropped]
        assert stored(chat, "m3", pending_max=1, overflow="drop_newest") == [dropped]
        turn.finish("one")
    assert rows.dispositions(database) == ["answered", "pending", "superseded"]
    chat.handler()(payloads)
    assert chat.submit("c1", "m4").reply == ["m2", "m4"]


# -- expire_ms --
def test_message_that_waited_too_long_gets_no_turn(chat: Any, database: Database) -> None:
    stored(chat, "m1", expire_ms=1)
    stored(chat, "m2", expire_ms=60_000)
    rows.execute(database, "UPDATE chatlock_messages SET received_at = received_at - 10000")
    chat.handler()(payloads)
    assert chat.submit("c1", "m3").reply == ["m2", "m3"]
    assert chat.status("c1", "m1") == Expired(message_id="m1", seq=1)


def test_thread_in_which_all_has_expired_gets_no_turn(chat: Any, database: Database) -> None:
    ran: list[Any] = []
    chat.handler()(lambda turn: ran.append(turn.token))
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2", "m3", expire_ms=1)
        turn.finish("one")
    rows.expire_all(database)
    chat.sweep_once()
    assert rows.dispositions(database) == ["answered", "expired", "expired"]
    chat.sweep_once()
    assert (ran, rows.table(database, "chatlock_due")) == ([], [])


def test_caller_whose_own_message_has_expired_gets_no_turn_over_what_waits_behind_it(
    chat: Any, database: Database
) -> None:
    stored(chat, "m1", expire_ms=1)
    stored(chat, "m2")
    rows.execute(database, "UPDATE chatlock_messages SET received_at = received_at - 10000")
    assert chat.begin("c1", "m1", message_id="m1", wait_ms=0) == Expired(message_id="m1", seq=1)
    assert rows.dispositions(database) == ["expired", "pending"]
    assert rows.turns(database) == []


def test_time_in_which_a_turn_ran_does_not_count(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2", expire_ms=60_000)
        rows.execute(database, "UPDATE chatlock_messages SET received_at = 1")
        turn.finish("one")
    chat.handler()(payloads)
    assert chat.submit("c1", "m3").reply == ["m2", "m3"]


def test_mid_turn_fetch_passes_over_what_has_expired(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2", expire_ms=1)
        stored(chat, "m3")
        rows.execute(database, "UPDATE chatlock_messages SET received_at = received_at - 10000")
        assert [m.payload for m in turn.fetch()] == ["m3"]
        turn.finish("both")
    assert rows.dispositions(database) == ["answered", "expired", "answered"]
    assert rows.thread_row(database)["holes"] == 0


def test_turn_keeps_a_message_that_would_expire_by_now(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1", message_id="m1", expire_ms=1) as turn:
        rows.expire_all(database)
        assert turn.fetch() == []
        turn.finish("one")
    assert isinstance(chat.status("c1", "m1"), AlreadyAnswered)


def test_waiter_is_told_that_its_message_has_expired(chat: Any, database: Database, start: Start) -> None:
    chat.handler()(payloads)
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2", expire_ms=1)
        rows.execute(database, f"UPDATE chatlock_threads SET quiet_until = {now(database) + QUIET_MAX_MS}")
        waiting = start(lambda: chat.submit("c1", "m2", message_id="m2", wait_ms=None))
        turn.finish("one")
    rows.expire_all(database)
    rows.execute(database, "UPDATE chatlock_threads SET quiet_until = 0")
    assert waiting.result(SECONDS_MAX) == Expired(message_id="m2", seq=2)
