"""The later roles of a soak, each alone with what it needs: what they do is noted, counted and clean."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

import pytest

from soak import fleet
from soak.ground import Ground
from soak.judge import judge
from soak.life import LIMITS, Birth, Life
from soak.roles import Sender
from soak.run import at_work, note_end, shares, verdict_of
from soak.weather import Weather
from tests.support.processes import Child
from tests.support.waiting import until

ACTS = {"async": 8, "visitor": 2}
"""How often each OS thread of a role acts; the others serve until they are told to end."""
MESSAGES, SLOTS = 6, 3
SEED = "2"
"""With it the service hands its turns to RQ, where there is one."""


class Stage:
    """One database, and a process of each role."""

    def __init__(self, ground: Ground, keep: Callable[[Child], Child]) -> None:
        self.ground, self._keep, self._roles = ground, keep, list[str]()

    def begin(self, role: str) -> Child:
        slot = self.ground.weather.slot(len(self._roles))
        self._roles.append(role)
        birth = Birth(self.ground, slot, f"{role}-1", SEED, ACTS.get(role))
        return self._keep(Child.fork(partial(resolve_name(fleet.LIVES[role]), birth)))

    def send(self) -> None:
        """Messages that whoever serves the database is to run."""
        life = Life(Birth(self.ground, self.ground.weather.slot(len(self._roles)), "sender-1", SEED), polls=False)
        with life.chat:
            for number in range(MESSAGES):
                Sender(life).deliver(f"thread-{number % 2}", f"message-{number}", {"kind": "ok"}, wait_ms=0)
        life.application.dispose()

    def judged(self) -> dict[str, Any]:
        """What was broken, and the verdict over the roles' shares."""
        note_end(self.ground, (), drained=False)
        by_role = shares(self.ground.weather, self._roles)
        judged = judge(self.ground.directory, LIMITS.attempts_max)
        verdict = verdict_of(judged.by_promise(), at_work(by_role, 1))
        return {"breaches": judged.breaches, "verdict": verdict, "by role": by_role}


@pytest.fixture
def ground() -> Iterator[Ground]:
    weather = Weather(SLOTS)
    weather["storm"] = 1
    with Ground("sqlite", weather) as made:
        yield made


@pytest.fixture
def stage(ground: Ground, child: Callable[[Child], Child]) -> Stage:
    return Stage(ground, child)


def ended(processes: Sequence[Child], codes: Sequence[int] = (0,)) -> None:
    for process in processes:
        assert process.wait() in codes, process.text


def test_async_client_talks_gives_up_and_looks_away(stage: Stage) -> None:
    ended([stage.begin("async")])
    found = stage.judged()
    assert (found["breaches"], found["verdict"]) == ({}, "passed")
    assert min(found["by role"]["async"].values()) > 0


def test_web_process_serves_visitors_who_leave_and_retry(stage: Stage) -> None:
    web = stage.begin("web")
    ended([stage.begin("visitor")])
    until(lambda: stage.ground.weather.total("began"))
    web.send(signal.SIGTERM)
    ended([web], (0, -signal.SIGTERM))
    found = stage.judged()
    assert (found["breaches"], found["verdict"]) == ({}, "passed")


def serve(stage: Stage, *roles: str) -> dict[str, Any]:
    """What comes of it when processes of these roles have all turns run."""
    serving = [stage.begin(role) for role in roles]
    stage.send()
    until(lambda: stage.ground.backlog() == (0, 0, 0))
    for process in serving:
        process.send(signal.SIGTERM)
    ended(serving)
    return stage.judged()


def test_poller_service_runs_what_is_stored(stage: Stage) -> None:
    found = serve(stage, "service")
    assert (found["breaches"], found["verdict"]) == ({}, "passed")


def test_processes_of_rq_jobs_run_what_the_service_hands_out(stage: Stage, redis_url: str) -> None:
    stage.ground.redis_url = redis_url
    found = serve(stage, "service", "rq")
    assert found["breaches"] == {}
    assert (found["by role"]["service"]["began"], found["by role"]["rq"]["began"] > 0) == (0, True)


def do_nothing(birth: Birth) -> None:
    """A role that is there, and no more."""


def test_control_role_that_does_nothing_makes_the_run_invalid(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fleet.LIVES, "async", f"{__name__}:do_nothing")
    ended([stage.begin("async")])
    found = stage.judged()
    assert (found["breaches"], found["verdict"]) == ({}, "invalid")
