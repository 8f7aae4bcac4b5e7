"""A short soak is clean, and what it recorded is refused as soon as a line of it says something else."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from chatlock import AlreadyAnswered, Busy, Queued
from chatlock.middleware.http import document
from chatlock.testing.checker import CHECKS
from soak import fleet, visitors
from soak.__main__ import EXIT_CODES, judge_again
from soak.judge import OWN_CHECKS, PROMISES, judge
from soak.life import LIMITS
from soak.run import verdict_of
from soak.weather import KILL, POINTS_OF, Weather
from tests.support.processes import Child

SECONDS = 3
Line = dict[str, Any]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The histories of a short run that was clean."""
    kept = tmp_path_factory.mktemp("soak") / "kept"
    child = Child.python("-m", "soak", "--seconds", str(SECONDS), "--db", "sqlite", "--keep", str(kept))
    try:
        assert child.wait() == EXIT_CODES["passed"], child.text
    finally:
        child.dispose()
    yield kept
    shutil.rmtree(kept)


@contextmanager
def corrupted(directory: Path, name: str, change: Callable[[Line], Line | None]) -> Iterator[None]:
    """The first file of this name with a line that `change` gives another form, or None to take it away: in all lines.

    One line alone may say what nobody was told.
    """
    for path in sorted(directory.glob(name)):
        text = path.read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        changed = [change(dict(line)) for line in lines]
        if changed != lines:
            path.write_text("".join(json.dumps(line) + "\n" for line in changed if line is not None))
            yield
            path.write_text(text)
            return
    raise AssertionError("nothing was changed")


def without_a_message(line: Line) -> Line | None:
    return None if line.get("event") == "message" else line


def answered_by_another(line: Line) -> Line:
    if line.get("event") == "message" and line["disposition"] == "answered":
        line["turn"] += 1_000
    return line


def pending_at_the_end(line: Line) -> Line:
    if line.get("event") == "message":
        line["disposition"] = "pending"
    return line


def never_given(line: Line) -> Line:
    if line.get("event") == "turn" and line["state"] == "done":
        line["reply"] = line["reply"] | {"nonce": "another"}
    return line


def written_twice(line: Line) -> Line:
    if line.get("log") == "reply":
        line["token"] += 1_000
    return line


def told_otherwise(line: Line) -> Line:
    if line.get("event") == "told" and line["outcome"] in ("Answered", "AlreadyAnswered"):
        line["outcome"] = "Cancelled"
    return line


@pytest.mark.parametrize(
    ("name", "change", "check"),
    [
        ("history-end.jsonl", without_a_message, "stored_once"),
        ("history-end.jsonl", answered_by_another, "ranges_tile"),
        ("history-end.jsonl", pending_at_the_end, "nothing_left"),
        ("history-[scw]*.jsonl", told_otherwise, "outcome_was_true"),
        ("history-end.jsonl", never_given, "replies_were_given"),
        ("agent-end.jsonl", written_twice, "application_agrees"),
    ],
)
def test_a_changed_record_is_refused(recorded: Path, name: str, change: Callable[[Line], Any], check: str) -> None:
    assert judge(recorded, LIMITS.attempts_max).breaches == {}
    with corrupted(recorded, name, change):
        assert check in judge(recorded, LIMITS.attempts_max).breaches
        assert judge_again(recorded) == EXIT_CODES["broken"]


def test_a_stale_effect_and_a_flaw_are_refused(recorded: Path) -> None:
    path = recorded / "agent-later.jsonl"
    lines: list[Line] = [{"log": "effect", "id": 10**9 + n, "thread": "t", "token": 2 - n} for n in range(2)]
    lines.append({"check": "process", "flaw": "a process ended with 1"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    judged = judge(recorded, LIMITS.attempts_max)
    path.unlink()
    assert judged.breaches.keys() == {"effects_in_order", "process"}
    assert judged.by_promise() == dict.fromkeys(PROMISES, 0) | {"stale writes accepted": 1, "other faults": 1}


def test_every_role_of_a_long_run_can_be_played_and_has_points_to_die_at() -> None:
    played = set(fleet.roles_of("postgres", 60)) | set(fleet.roles_of("sqlite", 60))
    assert played == set(fleet.LIVES) == set(POINTS_OF)
    assert set(fleet.roles_of("sqlite", SECONDS)) < played
    assert all(callable(resolve_name(fleet.LIVES[role])) for role in played)


def test_a_visitor_notes_what_the_answer_tells() -> None:
    for outcome in (
        Queued(message_id="m", seq=3, position=1),
        AlreadyAnswered(message_id="m", seq=3, incarnation=1, reply={"a": 1}, turn=7),
        Busy(message_id="m", holder=None, since_ms=5),
    ):
        assert visitors.outcome_of(document(outcome)) == outcome


def test_every_check_is_counted_under_one_promise() -> None:
    counted = [check for checks in PROMISES.values() for check in checks]
    assert sorted(counted) == sorted([*(kind.name for kind in CHECKS), *OWN_CHECKS])


def test_a_run_that_saw_too_little_is_invalid() -> None:
    assert len(set(EXIT_CODES.values())) == 3
    assert verdict_of({"lost": 0}, {"dead": (3, 3)}) == "passed"
    assert verdict_of({"lost": 0}, {"dead": (2, 3)}) == "invalid"
    assert verdict_of({"lost": 1}, {"dead": (2, 3)}) == "broken"


def test_what_a_killed_process_counted_is_kept_and_an_order_is_taken_once() -> None:
    weather = Weather(2)
    slot = weather.slot(1)
    pid = os.fork()
    if pid == 0:
        slot.add("lost_claim")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert weather.total("lost_claim") == 1
    slot.arm("finish.commit", KILL)
    assert [slot.take("finish.begin"), slot.take("finish.commit"), slot.take("finish.commit")] == [0, KILL, 0]
    assert weather.slot(0).take("finish.commit") == 0
