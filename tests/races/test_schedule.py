"""The harness itself: an order is imposed and proven by the trace, waiting is seen in the database, bad orders fail."""

from __future__ import annotations

import asyncio
import threading
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest

from chatlock import AsyncChatlock, Chatlock
from chatlock.testing import Schedule, ScheduleFailed, Step, point

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.databases import Database

ORDERS = sorted({"".join(order) for order in permutations("AABB")})


@pytest.fixture
def clients(database: Database) -> Iterator[list[Chatlock]]:
    made = [Chatlock(database.url, tenant="acme", poller=False) for _ in range(3)]
    made[0].submit("t1", "hello", wait_ms=0)
    yield made
    for client in made:
        client.close()


def submitting(schedule: Schedule, clients: list[Chatlock], **threads: str) -> None:
    """An actor for each name, with a client of its own, that submits to its thread."""
    for client, (name, thread) in zip(clients, threads.items(), strict=False):
        schedule.actor(name, lambda client=client, thread=thread: client.submit(thread, 1, wait_ms=0))


@pytest.mark.parametrize("order", ORDERS)
def test_order_is_imposed(order: str, clients: list[Chatlock], database: Database) -> None:
    schedule = Schedule()
    with schedule.attached(*clients):
        submitting(schedule, clients, A="t1", B="t1")
        played = schedule.play(order)
    commits = [step.actor for step in played.trace if step.point == "submit_hot.commit"]
    assert [played.value(name).seq for name in commits] == [2, 3]
    first = order[0]
    blocked = order[1] != first and order[2] != first
    assert played.postponed == ((order[2],) if blocked else ())
    imposed = order if not blocked else first + order[1] + first + order[1]
    assert "".join(step.actor for step in played.trace) == imposed


@pytest.mark.parametrize("order", ORDERS)
def test_unrelated_threads_wait_for_each_other_on_sqlite_only(
    order: str, clients: list[Chatlock], database: Database
) -> None:
    clients[0].submit("t2", "hello", wait_ms=0)
    schedule = Schedule()
    with schedule.attached(*clients):
        submitting(schedule, clients, A="t1", B="t2")
        played = schedule.play(order)
    if database.kind == "postgresql":
        assert "".join(step.actor for step in played.trace) == order
    blocked = order[1] != order[0] and order[2] != order[0]
    assert bool(played.postponed) == (blocked and database.kind == "sqlite")


def test_who_waits_behind_a_waiting_actor_is_seen_to_wait(clients: list[Chatlock]) -> None:
    schedule = Schedule()
    with schedule.attached(*clients):
        submitting(schedule, clients, A="t1", B="t1", C="t1")
        played = schedule.play("ABCCBA")
    assert played.postponed == ("C", "B")
    assert played.value("A").seq == 2
    # of two that wait for the same lock, either may get it first
    assert {played.value(name).seq for name in "BC"} == {3, 4}


def test_coroutine_is_an_actor_too(database: Database) -> None:
    async def submit() -> Any:
        async with AsyncChatlock(database.url, tenant="acme", poller=False) as chat:
            attached.append(chat)
            with schedule.attached(chat):
                schedule.actor("A", lambda: chat.submit("t1", 1, wait_ms=0))
                return await asyncio.to_thread(schedule.play, "AA")

    schedule, attached = Schedule(), []
    played = asyncio.run(submit())
    assert str(played) == "A:submit_hot.begin A:submit_hot.commit"
    assert attached[0]._executor.points is None


def test_points_of_the_test_and_watch(clients: list[Chatlock]) -> None:
    def script() -> None:
        point("own")
        clients[0].status("t1", "m1")

    seen: list[Step] = []
    schedule = Schedule()
    with schedule.attached(*clients):
        schedule.actor("A", script)
        played = schedule.play("AA", watch=seen.append)
    assert list(played.trace) == seen == [Step("A", "own"), Step("A", "status.begin")]


def test_chatlocks_own_os_threads_and_unattached_clients_are_not_stopped(database: Database) -> None:
    with Chatlock(database.url, tenant="acme", poller=False) as chat, Schedule().attached(chat):
        assert chat.submit("t1", 1, wait_ms=0).seq == 1
        assert chat.submit("t1", 2, wait_ms=10).seq == 2


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("AAA", "too many steps of .'A'"),
        ("A", "none for .'A:submit_hot.commit'"),
        ("AAX", "X.*no actors"),
    ],
)
def test_order_that_is_not_the_actors_fails(order: str, message: str, clients: list[Chatlock]) -> None:
    schedule = Schedule()
    with schedule.attached(*clients):
        submitting(schedule, clients, A="t1")
        with pytest.raises(ScheduleFailed, match=message):
            schedule.play(order)


def test_inexact_order_drops_and_adds_steps(clients: list[Chatlock]) -> None:
    schedule = Schedule()
    with schedule.attached(*clients):
        submitting(schedule, clients, A="t1", B="t1")
        played = schedule.play("AAA", exact=False)
    assert played.surplus == ("A",)
    assert [str(step) for step in played.rest] == ["B:submit_hot.begin", "B:submit_hot.commit"]


def test_order_that_is_not_imposed_fails(clients: list[Chatlock], monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without the stop at its points an actor runs on, and the trace says so."""

    def run_on(schedule: Schedule, name: str) -> None:
        schedule._trace.append(Step("A", name))

    monkeypatch.setattr(Schedule, "_arrive", run_on)
    schedule = Schedule()
    with schedule.attached(*clients):
        submitting(schedule, clients, A="t1")
        with pytest.raises(ScheduleFailed, match="not imposed"):
            schedule.play("AA", exact=False)


def test_actor_that_neither_stands_nor_waits_in_the_database_fails(clients: list[Chatlock]) -> None:
    """Control: waiting is recognised in the database, so an actor that only takes its time is not taken for blocked."""
    opened = threading.Event()
    schedule = Schedule(seconds_max=0.5)
    with schedule.attached(*clients):
        schedule.actor("A", lambda: opened.wait(10))
        with pytest.raises(ScheduleFailed, match="did not come to rest: A runs since its start"):
            schedule.play("A")
    opened.set()


def test_nobody_stops_in_an_unstopped_operation(clients: list[Chatlock]) -> None:
    schedule = Schedule(unstopped=("submit_hot",))
    with schedule.attached(*clients):
        submitting(schedule, clients, A="t1")
        played = schedule.play("")
    assert played.value("A").seq == 2
    assert played.trace == ()


def test_what_a_script_raises_is_told(clients: list[Chatlock]) -> None:
    schedule = Schedule()
    with schedule.attached(*clients):
        schedule.actor("A", lambda: clients[0].submit("", 1))
        played = schedule.play("")
    assert type(played.errors["A"]).__name__ == "InvalidInput"
    with pytest.raises(type(played.errors["A"])):
        played.value("A")


def test_client_is_attached_to_one_schedule_at_a_time(clients: list[Chatlock]) -> None:
    with Schedule().attached(clients[0]):
        with pytest.raises(ScheduleFailed, match="attached already"), Schedule().attached(clients[0]):
            pass
        assert clients[0]._executor.points is not None
    assert clients[0]._executor.points is None
    with pytest.raises(ScheduleFailed, match="inside"):
        Schedule().play("")
