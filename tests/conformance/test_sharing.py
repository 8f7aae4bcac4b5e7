"""What pollers take first: classes, tenants in turn, a limit on a tenant's turns; and promote."""

from __future__ import annotations

from typing import Any

import pytest

from chatlock import Debounce, InvalidInput, Receipt
from chatlock.ops import due as due_op
from tests.conformance import rows
from tests.conformance.clocks import now
from tests.conformance.conftest import BOTH, NewChat
from tests.support.databases import Database

pytestmark = pytest.mark.usefixtures("database")

FAR_MS = 3_600_000


def stored(chat: Any, thread: str, message_id: str = "m1", **options: Any) -> None:
    chat.submit(thread, message_id, message_id=message_id, wait_ms=0, **options)


def first(chat: Any, limit: int = 100) -> list[str]:
    """The threads that a poller of this client would take, in order."""
    return [key.thread for key, _ in chat._sweep.due(["default"], limit)]


def classes(database: Database, thread: str = "c1") -> tuple[int, list[int]]:
    """The thread's class, and that of its due row."""
    due = rows.table(database, "chatlock_due")
    return rows.thread_row(database, thread)["priority"], [d["priority"] for d in due if d["thread_id"] == thread]


# -- classes -----------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("way")
def test_people_go_before_what_resumes_and_that_before_background(new_chat: NewChat) -> None:
    chat = new_chat()
    for thread, priority in (("c1", "background"), ("c2", "resume"), ("c3", "user"), ("c4", "background")):
        stored(chat, thread, priority=priority)
    assert first(chat) == ["c3", "c2", "c1", "c4"]


@pytest.mark.usefixtures("way")
def test_thread_has_the_first_class_of_its_pending_messages(new_chat: NewChat, database: Database) -> None:
    chat = new_chat()
    stored(chat, "c1", "m1", priority="background")
    assert classes(database) == (20, [20])
    stored(chat, "c1", "m2", priority="resume")
    stored(chat, "c1", "m3", priority="background")
    assert classes(database) == (10, [10])
    chat.begin("c1", "m4", message_id="m4", policy="latest").finish("ok")
    stored(chat, "c1", "m5", priority="background")
    assert classes(database) == (20, [20])


@pytest.mark.usefixtures("way")
def test_message_behind_a_turn_gives_the_thread_its_class(new_chat: NewChat, database: Database) -> None:
    chat = new_chat()
    turn = chat.begin("c1", "m1", priority="background")
    stored(chat, "c1", "m2")
    turn.finish("ok")
    assert classes(database) == (0, [0])


def test_background_is_taken_where_room_is_left(chat: Any) -> None:
    stored(chat, "c1", priority="background")
    stored(chat, "c2")
    assert first(chat, limit=1) == ["c2"]
    assert first(chat, limit=2) == ["c2", "c1"]


def test_unknown_class_is_refused(chat: Any, database: Database) -> None:
    with pytest.raises(InvalidInput, match="priority must be one of"):
        stored(chat, "c1", priority="urgent")
    assert rows.table(database, "chatlock_threads") == []


# -- promote -----------------------------------------------------------------------------------------------------------
class TestPromote:
    pytestmark = BOTH

    def test_promoted_thread_is_among_the_first_and_waits_no_longer(self, chat: Any, database: Database) -> None:
        stored(chat, "c1", "m1", priority="background", policy=Debounce(quiet_ms=FAR_MS, max_wait_ms=FAR_MS))
        stored(chat, "c1", "m2", priority="background")
        stored(chat, "c2", priority="resume")
        assert first(chat) == ["c2"]
        assert chat.promote("c1") == Receipt(True, "promoted", "idle")
        assert first(chat) == ["c1", "c2"]
        assert rows.thread_row(database)["quiet_until"] == 0
        chat.handler()(lambda turn: [message.payload for message in turn.messages])
        assert chat.sweep_once().turns == 2
        assert chat.status("c1", "m2").reply == ["m1", "m2"]  # the order inside the thread stays

    def test_promote_lets_a_failed_message_keep_its_backoff(self, chat: Any, database: Database) -> None:
        stored(chat, "c1", priority="background")
        until = now(database) + 30_000
        rows.execute(database, f"UPDATE chatlock_threads SET not_before = {until}, attempts = 1")
        rows.execute(database, f"UPDATE chatlock_due SET due_at = {until}")
        assert chat.promote("c1").done
        assert first(chat) == []
        assert [due["due_at"] for due in rows.table(database, "chatlock_due")] == [until]

    def test_promote_of_a_running_thread_is_for_the_turn_after(self, chat: Any, database: Database) -> None:
        turn = chat.begin("c1", "m1", priority="background")
        stored(chat, "c1", "m2", priority="background")
        assert chat.promote("c1") == Receipt(True, "promoted", "running")
        assert rows.table(database, "chatlock_due") == []
        turn.finish("ok")
        assert classes(database) == (0, [0])

    def test_nothing_to_promote(self, chat: Any) -> None:
        assert chat.promote("c1") == Receipt(False, "not_found", "absent")
        chat.begin("c1", "m1").finish("ok")
        assert chat.promote("c1") == Receipt(False, "nothing_pending", "idle")
        chat.delete("c1")
        assert chat.promote("c1") == Receipt(False, "not_found", "deleted")


# -- tenants -----------------------------------------------------------------------------------------------------------
def crowd(database: Database, **counts: int) -> None:
    """So many due threads of each tenant; those of an earlier tenant have all waited longer."""
    at = now(database) - 1_000_000
    for tenant, count in counts.items():
        for n in range(count):
            thread = f"{tenant}{n}"
            rows.execute(
                database,
                f"INSERT INTO chatlock_threads(tenant, thread_id, last_seq) VALUES ('{tenant}', '{thread}', 1)",
            )
            rows.execute(
                database, f"INSERT INTO chatlock_due(tenant, thread_id, due_at) VALUES ('{tenant}', '{thread}', {at})"
            )
            at += 1


def clear(database: Database) -> None:
    """The threads above have no messages, which the end of a test would find."""
    for table in ("chatlock_threads", "chatlock_due", "chatlock_turns"):
        rows.execute(database, f"DELETE FROM {table}")


def test_tenant_with_a_crowd_leaves_each_other_its_share(chat: Any, database: Database) -> None:
    crowd(database, hot=40, b=3, c=1, d=9)
    taken = [thread[0] for thread in first(chat, limit=8)]
    assert sorted(taken) == ["b", "b", "c", "d", "d", "h", "h", "h"]
    assert first(chat, limit=8)[:4] == ["hot0", "b0", "c0", "d0"]
    clear(database)


def test_control_the_oldest_alone_are_of_one_tenant(
    chat: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd(database, hot=40, b=3)
    monkeypatch.setattr(due_op, "OF_EACH_QUEUE", due_op.OLDEST)
    assert {thread[0] for thread in first(chat, limit=8)} == {"h"}
    clear(database)


@pytest.mark.parametrize("served", [["default"], None])
def test_every_queue_is_found_where_many_wait(chat: Any, database: Database, served: list[str] | None) -> None:
    """Classes of a tenant, an agent of others, a dispatch lease, a clock that stepped: as among a few."""
    crowd(database, hot=8, b=5)
    far = now(database) + 10 * FAR_MS
    for thread, column in (("b0", "priority = 10"), ("b1", "priority = 20"), ("b2", f"due_at = {far}")):
        rows.execute(database, f"UPDATE chatlock_due SET {column} WHERE thread_id = '{thread}'")
    leased = now(database) + 60_000
    rows.execute(database, f"UPDATE chatlock_due SET dispatched_until = {leased} WHERE thread_id = 'b3'")
    rows.execute(database, "UPDATE chatlock_threads SET agent = 'other' WHERE thread_id = 'b4'")
    few = due_op.LOOKED_AT * 3 - 1  # 13 wait, of which two cannot be taken
    assert few == 11
    taken = [key.thread for key, _ in chat._sweep.due(served, 3)]
    every = [key.thread for key, _ in chat._sweep.due(served, 100)]
    others = [] if served else ["b4"]
    assert taken == [*["hot0", "b2" if served else "b4", "hot1"][:3]]
    assert sorted(every) == sorted([f"hot{n}" for n in range(8)] + ["b0", "b1", "b2", *others])
    assert every[-1] == "b1"
    clear(database)


# -- a limit on a tenant's turns ---------------------------------------------------------------------------------------
def test_tenant_with_all_its_turns_running_waits(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(tenant_turns_max=2)
    turns = [chat.begin(f"c{n}", n) for n in (1, 2)]
    stored(chat, "c3")
    stored(chat, "c4")
    stored(chat, "other", tenant="b")
    assert first(chat) == ["other"]
    turns[0].finish("ok")
    assert first(chat) == ["c3", "other"]
    rows.execute(database, "UPDATE chatlock_threads SET expires_at = 1 WHERE thread_id = 'c2'")
    assert first(chat) == ["c3", "other", "c4"]  # what is stale does not count
    rows.execute(database, f"UPDATE chatlock_threads SET expires_at = {now(database) + 60_000} WHERE thread_id = 'c2'")
    turns[1].finish("ok")


def test_thread_that_was_left_to_a_worker_counts_as_running(new_chat: NewChat) -> None:
    chat = new_chat(tenant_turns_max=3)
    for thread in ("c1", "c2", "c3", "c4"):
        stored(chat, thread)
    (one, _), *others = chat._sweep.due(None, 100)
    assert chat._sweep.dispatch(one, 15_000) is not None
    assert first(chat) == ["c2", "c3"]
    assert all(chat._sweep.dispatch(key, 15_000) for key, _ in others)
    assert first(chat) == []


def test_dispatch_deletes_the_row_of_a_thread_that_waits_for_no_turn(new_chat: NewChat, database: Database) -> None:
    chat = new_chat()
    with chat.turn("c1", "m1") as turn:
        turn.finish("ok")
    rows.execute(database, "INSERT INTO chatlock_due(tenant, thread_id, due_at) VALUES ('t', 'c1', 1)")
    ((key, _),) = chat._sweep.due(None, 100)
    assert chat._sweep.dispatch(key, 15_000) is None
    assert rows.table(database, "chatlock_due") == []


def test_limit_must_be_a_number_of_turns(new_chat: NewChat) -> None:
    with pytest.raises(InvalidInput, match="tenant_turns_max"):
        new_chat(tenant_turns_max=0)
