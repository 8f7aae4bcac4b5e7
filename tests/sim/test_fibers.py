"""The simulation's own ground: its locks and waits behave as those of `threading`, and its schedules find races."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sim.fibers import Killed, Scheduler, Stuck


def scheduler(seed: int = 1, *, slow: float = 0.0, preempt: float = 0.5) -> Scheduler:
    return Scheduler(Random(seed), slow=slow, preempt=preempt, sticky=0.0)


def home(name: str = "p") -> Any:
    return SimpleNamespace(name=name, dead=False, paused_until=0.0)


def run(made: Scheduler, *works: Callable[[], Any], at: Any = None) -> list[Any]:
    """Runs each in a fiber of its own to the end of all."""
    fibers = [made.spawn(at or home(), f"f{n}", work) for n, work in enumerate(works)]
    made.run(lambda: all(fiber.ended for fiber in fibers))
    for fiber in fibers:
        if fiber.error is not None:
            raise fiber.error
    return [fiber.value for fiber in fibers]


def lost_updates(seed: int, *, locked: bool) -> bool:
    """Whether two fibers that each count to 3 come to less than 6 together."""
    made = scheduler(seed)
    lock, count = made.threading.Lock(), SimpleNamespace(value=0)

    def add() -> None:
        before = count.value
        made.pause("between")
        count.value = before + 1

    def work() -> None:
        for _ in range(3):
            if locked:
                with lock:
                    add()
            else:
                add()

    run(made, work, work)
    return count.value < 6


def test_schedules_find_a_race_and_a_lock_ends_it() -> None:
    assert any(lost_updates(seed, locked=False) for seed in range(20))
    assert not any(lost_updates(seed, locked=True) for seed in range(20))


def test_same_seed_gives_the_same_order() -> None:
    def trace(seed: int) -> list[str]:
        made = scheduler(seed)
        run(made, *[lambda: [made.pause("a") for _ in range(5)]] * 3)
        return made.trace

    assert trace(1) == trace(1)
    assert len({tuple(trace(seed)) for seed in range(10)}) > 5


@pytest.mark.parametrize("real", [False, True])
def test_events_and_conditions_are_those_of_threading(real: bool) -> None:
    """The same script on real OS threads."""
    made = scheduler()
    kind: Any = threading if real else made.threading
    told: list[str] = []

    def script() -> None:
        event, condition, ready = kind.Event(), kind.Condition(kind.RLock()), []
        assert not event.wait(0.01)

        def waits() -> None:
            with condition:
                with condition:  # it may be taken again
                    assert condition.wait_for(lambda: ready, 30)
                told.append("condition")
            assert event.wait(30)
            told.append("event")

        thread = kind.Thread(target=waits, name="waits", daemon=True)
        assert not thread.is_alive()
        thread.start()
        with condition:
            ready.append(1)
            condition.notify_all()
        event.set()
        thread.join(30)
        assert not thread.is_alive()
        assert event.is_set()
        with pytest.raises(RuntimeError):
            condition.notify_all()

    if real:
        script()
    else:
        run(made, script)
    assert told == ["condition", "event"]


def test_waits_end_with_the_clock_and_nothing_else_moves_it() -> None:
    made = scheduler()

    def waits() -> tuple[bool, float]:
        return made.threading.Event().wait(2.5), made.time.monotonic()

    assert run(made, waits) == [(False, 2.5)]
    assert run(made, lambda: (made.time.sleep(1.0), made.now)[1]) == [3.5]


def test_lock_may_be_released_by_another() -> None:
    made = scheduler()
    door, passed = made.threading.Lock(), []

    def waits() -> None:
        door.acquire()
        door.acquire()
        passed.append("through")

    def opens() -> None:
        made.sleep(1.0)
        assert passed == []
        door.release()

    run(made, waits, opens)
    assert passed == ["through"]


def test_everyone_waiting_for_ever_is_told() -> None:
    made = scheduler()
    with pytest.raises(Stuck, match="nobody can go on"):
        run(made, lambda: made.threading.Event().wait())


def test_killed_process_runs_nothing_more() -> None:
    made, dying, log = scheduler(), home("dying"), []

    def work() -> None:
        try:
            made.sleep(5.0)
            log.append("went on")
        finally:
            log.append("unwound")
            with pytest.raises(Killed):
                made.sleep(1.0)

    def kills() -> None:
        made.sleep(1.0)
        made.later(lambda: made.kill(dying))
        made.pause("killing")
        assert log == ["unwound"]

    made.spawn(dying, "work", work)
    run(made, kills)
    assert made.living == []


def test_paused_process_stands_still_while_others_go_on() -> None:
    made, paused, log = scheduler(), home("paused"), []
    paused.paused_until = 10.0
    made.spawn(paused, "late", lambda: log.append(("late", made.now)))
    run(made, lambda: (made.sleep(3.0), log.append(("early", made.now)), made.sleep(9.0)))
    assert log == [("early", 3.0), ("late", 10.0)]
