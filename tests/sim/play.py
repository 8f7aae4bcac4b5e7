"""Plays one seed: builds its world, lets it run, and judges what came of it."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import shutil
import sqlite3
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from chatlock import executor
from chatlock.ops import base
from chatlock.protocol import TurnState
from chatlock.testing.checker import check
from chatlock.testing.history import History
from tests.sim.cast import CHOSEN, LIMITS, Cast
from tests.sim.director import direct
from tests.sim.fibers import Scheduler
from tests.sim.truth import Truth
from tests.sim.turns import handle
from tests.sim.world import Rates, Swallowed, World

FAULTS = ("kill", "pause", "interrupt", "outage", "clock", "ack_lost", "error_before_commit")
ACTS = (
    *("cancel", "promote", "park", "resume", "free", "delete", "redrive", "status", "edit", "answer"),
    *("stop", "stop", "impostor"),
)
WAYS = ("twice", "block", "caller", "rollback", "reject", "recreate", "inner", "drop", "exit", "hang", "ask", "linger")
GENTLE_FAULTS = ("interrupt", "ack_lost", "error_before_commit", "clock")
SILENT = ("drop", "hang", "exit", "linger", "no_heartbeat")
STEPS_EXPECTED = 300
TRACE_SHOWN = 40
COUNTED = (
    ("told", "outcome"), ("over", "why"), ("asking", "awaiting"), ("message", "disposition"), ("turn", "state"),
)  # fmt: skip
"""Events that are counted, by one of their fields."""


@dataclass
class Played:
    """What one seed came to."""

    seed: int
    flaws: list[str]
    reached: Counter[str]
    steps: int
    commits: int
    digest: str
    trace: list[str]
    history: History

    def report(self) -> str:
        lines = [*(f"  {flaw}" for flaw in self.flaws), "  the last steps:"]
        lines += [f"    {step}" for step in self.trace[-TRACE_SHOWN:]]
        return "\n".join([f"seed {self.seed} failed; replay it with: make sim SEED={self.seed}", *lines])


def make_template(path: Path) -> None:
    """The schema, and the table of the application that the handlers write to under a fence."""
    from tests.support.databases import create_schema

    create_schema(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE sim_effects(id INTEGER PRIMARY KEY, thread_id TEXT, token INTEGER)")
        conn.commit()


def play(seed: int, template: Path, path: Path) -> Played:
    """The same seed gives the same run, step by step."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copyfile(template, path)
    random = Random(seed)
    rates = _rates(random)
    scheduler = Scheduler(
        random,
        slow=0.0 if rates.gentle else random.choice([0.0, 0.02, 0.1]),
        preempt=random.choice([0.0, 0.05, 0.3]),
        sticky=random.choice([0.0, 0.5, 0.8]),
    )
    world = World(path, random, rates, scheduler)
    scheduler.between = world.disturb
    history = History(name="call", now=lambda: scheduler.steps)
    features, acts = _features(random, rates.gentle), [act for act in ACTS if random.random() < 0.5]
    features["recreate"], features["ask"] = 2 * features["recreate"], 2 * features["ask"]
    features |= {name: random.choice([0.0, 0.0, 0.3]) for name in (*CHOSEN, "expire")}
    features["obey"] = random.choice([0.0, 0.3, 0.8])
    cast = Cast(world, history, f"sqlite:///{path}", features, acts, handle, gentle=rates.gentle)
    with _alone(world), world.installed(), closing(sqlite3.connect(path)) as conn:
        world.truth = Truth(conn, LIMITS, scheduler.time.monotonic)
        try:
            director = scheduler.spawn(world, "director", lambda: direct(cast, random))
            scheduler.run(lambda: director.ended or bool(world.flaws))
            if director.ended:
                _judge(cast, director.error)
            _count(cast)
        except AssertionError as error:
            world.flaws.append(f"{type(error).__name__}: {error}")
        finally:
            _end(cast)
    whole = [*scheduler.trace, *(json.dumps(event) for event in history.events)]
    digest = hashlib.sha256("\n".join(whole).encode()).hexdigest()[:16]
    return Played(seed, world.flaws, world.reached, scheduler.steps, world.commits, digest, scheduler.trace, history)


@contextmanager
def _alone(world: World) -> Iterator[None]:
    """What the product logs is judged, and memory is freed at the same step every time."""
    log, caught = logging.getLogger("chatlock"), Swallowed(world)
    level = log.level
    log.setLevel(logging.WARNING)
    log.addHandler(caught)
    log.propagate = False
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a coroutine whose caller was killed before it ran
        try:
            yield
        finally:
            log.removeHandler(caught)
            log.setLevel(level)
            log.propagate = True
            gc.collect(0)  # the young ones alone: all that this run has made
            gc.enable()


def _rates(random: Random) -> Rates:
    """A seed likes some faults and knows nothing of others: rare ones then meet each other often enough."""
    rates = Rates(budget=random.choice([0, 1, 2, 4, 8]), hold=random.choice([0.0, 0.0, 0.1]))
    rates.gentle = random.random() < 0.25
    liked = [fault for fault in (GENTLE_FAULTS if rates.gentle else FAULTS) if random.random() < 0.5]
    per_commit = 0.25 if rates.gentle else 0.15
    for fault in liked:
        rare = fault in ("ack_lost", "error_before_commit")
        setattr(rates, fault, per_commit if rare else 2 * rates.budget / STEPS_EXPECTED / len(liked))
    return rates


def _features(random: Random, gentle: bool) -> dict[str, float]:
    features = {name: random.choice([0.0, 0.0, 0.3]) for name in WAYS}
    features["no_heartbeat"] = random.random() if random.random() < 0.3 else 0.0
    return features | (dict.fromkeys(SILENT, 0.0) if gentle else {})


def _judge(cast: Cast, error: BaseException | None) -> None:
    world = cast.world
    if error is not None:
        world.flaws.append(f"the director was stopped by {type(error).__name__}: {error}")
    for fiber in world.scheduler.started:
        if fiber.error is not None and fiber.error is not error:
            world.flaws.append(f"{fiber.name} raised {type(fiber.error).__name__}: {fiber.error}")
    turns = [turn for thread in world.truth.threads().values() for turn in thread.turns.values()]
    reclaimed = [turn for turn in turns if turn.state == TurnState.RECLAIMED]
    if cast.gentle and any(turn.error == base.SILENT or not world.stepped for turn in reclaimed):
        world.flaws.append(f"nobody fell silent, and turns were reclaimed: {reclaimed}")
    for breach in check(cast.history, attempts_max=LIMITS.attempts_max):
        world.flaws.append(f"history: {breach.invariant}: {breach.text} ({breach.thread})")


def _count(cast: Cast) -> None:
    """What this run came past, so that rare paths can be seen to be taken."""
    for event in cast.history.events:
        for kind, name in COUNTED:
            if event["event"] == kind:
                cast.world.reached[f"{kind} {event[name]}"] += 1


def _end(cast: Cast) -> None:
    world = cast.world
    for site in cast.sites:
        site.chat._flows.closing = True  # the end of this interpreter has nothing to close there
        executor._executors.discard(site.chat._executor)  # nor has a fork, which would meet the locks of fibers
    for process in world.processes:
        if not process.dead:
            world.scheduler.kill(process)
    for fiber in list(world.scheduler.living):
        world.scheduler.kill(fiber.home)
    world.dispose()
