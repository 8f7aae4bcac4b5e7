"""Waiters are woken by what happens, not only by the look of every second; here nobody looks by himself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from chatlock import Answered, Chatlock, Turn
from chatlock.errors import StoreUnavailable
from chatlock.inputs import Key, key_hash
from chatlock.ops.inspect import Look, Standing, Waited
from chatlock.wake.waiters import Waiter, Waiters
from tests.support.databases import Database
from tests.support.waiting import SECONDS_MAX, until

A, B = Key("t", "a"), Key("t", "b")
NOTHING, RESOLVED, CLAIMABLE = Look(False, False), Look(True, False), Look(False, True)
RUNNING = Standing(1, "running", token=5, done_seq=3, holes=0, may_start=True)


class Told:
    """A signal that counts."""

    def __init__(self) -> None:
        self.times = 0

    def set(self) -> None:
        self.times += 1

    async def wait(self, timeout_s: float | None) -> bool:
        raise AssertionError("nobody waits here")


@pytest.fixture(autouse=True)
def _no_look_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatlock.wake.waiters.LOOK_EVERY_S", 3600.0)


class Room:
    """Waiters over a looker that sees what the test says."""

    def __init__(self) -> None:
        self.sees: dict[Waited, Look] = {}
        self.errors: list[Exception] = []
        self.looked: list[list[Waited]] = []
        self.stands: dict[Key, Standing] = {}
        self.waiters = Waiters(self._look, lambda keys: {key: self.stands[key] for key in keys})

    def _look(self, waited: list[Waited]) -> dict[Waited, Look]:
        self.looked.append(sorted(waited))
        if self.errors:
            raise self.errors.pop()
        return {name: self.sees.get(name, NOTHING) for name in waited}

    def wait(self, key: Key, seq: int, *, claims: bool = True) -> tuple[Waiter, Told]:
        told = Told()
        waiter = self.waiters.subscribe(key, told, claims=claims)
        self.waiters.arm(waiter, named(key, seq))
        return waiter, told

    def looks(self, times: int) -> None:
        until(lambda: len(self.looked) >= times)


def named(key: Key, seq: int) -> Waited:
    return (key.tenant, key.thread, 1, seq)


@pytest.fixture
def room() -> Iterator[Room]:
    made = Room()
    yield made
    made.waiters.close()


def test_wake_looks_for_the_waiters_of_its_thread_alone(room: Room) -> None:
    _, told = room.wait(A, 1)
    _, other = room.wait(B, 1)
    room.sees = {named(A, 1): RESOLVED, named(B, 1): RESOLVED}
    room.waiters.wake(A)
    until(lambda: told.times)
    assert (room.looked, other.times) == ([[named(A, 1)]], 0)


def test_wake_between_subscribe_and_arm_is_kept(room: Room) -> None:
    """Also where a look for another one of its thread has come and gone meanwhile."""
    room.wait(A, 1)
    told = Told()
    waiter = room.waiters.subscribe(A, told, claims=True)
    room.waiters.wake(A)
    room.looks(1)
    room.sees = {named(A, 2): RESOLVED}
    room.waiters.arm(waiter, named(A, 2))
    until(lambda: told.times)


def test_wake_by_name_finds_its_thread_and_none_means_any(room: Room) -> None:
    room.wait(A, 1)
    room.wait(B, 1)
    room.waiters.wake_named("nobody's name")
    room.waiters.wake_named(key_hash(B))
    room.looks(1)
    room.waiters.wake_named(None)
    room.looks(2)
    assert room.looked == [[named(B, 1)], [named(A, 1), named(B, 1)]]


@pytest.mark.parametrize("order", [(7, 3, 1), (1, 3, 7)], ids=str)
def test_of_a_free_thread_the_one_that_waits_longest_is_told(room: Room, order: tuple[int, ...]) -> None:
    waiting = {seq: room.wait(A, seq, claims=seq != 1) for seq in order}
    names = {named(A, seq): [waiter] for seq, (waiter, _) in waiting.items()}
    room.waiters._tell(names, dict.fromkeys(names, CLAIMABLE))
    assert {seq: told.times for seq, (_, told) in waiting.items()} == {3: 1, 7: 0, 1: 0}


def test_another_is_told_when_the_one_that_should_claim_leaves(room: Room) -> None:
    (leaves, told), (_, next_told) = room.wait(A, 1), room.wait(A, 2)
    room.sees = {named(A, 1): CLAIMABLE, named(A, 2): CLAIMABLE}
    room.waiters.wake(A)
    until(lambda: told.times)
    room.waiters.unsubscribe(leaves)
    until(lambda: next_told.times)


def seen_pending(room: Room, standing: Standing) -> Waiter:
    """A waiter of A whose message was last seen pending while its thread stood so; it still does."""
    waiter, _ = room.wait(A, 1)
    room.stands, room.sees = {A: standing}, {named(A, 1): Look(False, False, standing)}
    room.waiters._look([waiter])
    room.looked.clear()
    return waiter


BACKED_OFF = replace(RUNNING, status="idle", may_start=False)
FREE = replace(RUNNING, status="idle")


@pytest.mark.parametrize("standing", [RUNNING, BACKED_OFF])
def test_thread_that_stands_as_before_has_only_its_new_waiters_looked_at(room: Room, standing: Standing) -> None:
    waiter = seen_pending(room, standing)
    new, _ = room.wait(A, 2)
    assert room.waiters._unsettled([waiter, new]) == [new]
    room.waiters.arm(waiter, named(A, 1))  # its own attempt to claim failed
    assert room.waiters._unsettled([waiter, new]) == [waiter, new]


@pytest.mark.parametrize(
    ("standing", "change"),
    [
        (RUNNING, {"holes": 1}),
        (RUNNING, {"done_seq": 4}),
        (RUNNING, {"token": 6}),
        (RUNNING, {"incarnation": 2}),
        (RUNNING, {"status": "idle"}),
        (RUNNING, {"status": "parked"}),
        (RUNNING, {"status": "deleted"}),
        (BACKED_OFF, {"may_start": True}),
        (FREE, {}),
    ],
)
def test_thread_that_changed_or_is_free_has_all_its_waiters_looked_at(
    room: Room, standing: Standing, change: dict[str, Any]
) -> None:
    waiter = seen_pending(room, standing)
    room.stands = {A: replace(standing, **change)}
    assert room.waiters._unsettled([waiter]) == [waiter]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ZeroDivisionError()])
def test_look_that_fails_ends_no_looks(error: Exception, room: Room) -> None:
    _, told = room.wait(A, 1)
    room.errors, room.sees = [error], {named(A, 1): RESOLVED}
    room.waiters.wake(A)
    room.looks(1)
    room.waiters.wake(A)
    until(lambda: told.times)


def test_close_tells_everyone(room: Room) -> None:
    waiter, told = room.wait(A, 1)
    room.waiters.close()
    assert (waiter.closed, told.times) == (True, 1)


@pytest.fixture
def chat(sqlite_database: Database) -> Iterator[Chatlock]:
    with Chatlock(sqlite_database.url, tenant="t", poller=False) as made:
        made.handler()(lambda turn: "ok")
        yield made


def test_end_of_a_turn_wakes_who_waits_in_its_process(chat: Chatlock) -> None:
    turn = chat.begin("a", "one")
    assert isinstance(turn, Turn)
    told: list[Any] = []
    waiting = threading.Thread(target=lambda: told.append(chat.submit("a", "two", wait_ms=SECONDS_MAX * 1000)))
    waiting.start()
    until(lambda: chat._flows.waiters.will_claim(A))
    turn.finish("ok")
    waiting.join(SECONDS_MAX)
    assert isinstance(told[0], Answered)
