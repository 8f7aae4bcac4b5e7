"""One soak from its first process to its summary."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from chatlock import Chatlock
from chatlock.inputs import Key
from chatlock.testing import History
from soak.agent import Agent
from soak.fleet import ALL_FROM_S, Fleet, roles_of
from soak.ground import Ground
from soak.judge import Judged, judge
from soak.life import LIMITS, TENANT, Birth, Life, Log
from soak.nemesis import Nemesis
from soak.roles import Caller
from soak.weather import Weather

BACKLOG_MAX = 5_000
GENERATION_S = 60.0
DRAIN_S = 240.0
BREACHES_SHOWN = 20
RARE = {
    "lost_claim": 12,
    "cut_committed": 30,
    "cut_not_committed": 30,
    "refused_fence": 60,
    "refused_finish": 60,
    "already_answered": 10,
    "alone_after_failure": 15,
    "dead": 60,
    "at_point": 20,
}
"""Rare paths, each with how many seconds of a run must see it once; a run that saw less shows nothing.

Nor does one of ALL_FROM_S or more in which a role accepted no message and began no turn.
"""


class Soak:
    """A run of so many seconds on one kind of database."""

    def __init__(self, kind: str, seconds: float, seed: int) -> None:
        self._kind, self._seconds, self._seed = kind, seconds, seed
        self._random = Random(seed)
        self._roles = roles_of(kind, seconds)
        self._weather = Weather(len(self._roles))

    def run(self, keep: Path | None = None) -> dict[str, Any]:
        """The summary.  keep: where the histories are left; None: somewhere, if something broke."""
        with Ground(self._kind, self._weather) as ground:
            fleet = Fleet(ground, self._roles, self._random, self._seed)
            warm_up(ground)
            try:
                nemesis = self._storm(ground, fleet)
                took = self._drain(ground, fleet, nemesis)
                fleet.end()
            finally:
                fleet.kill()
            note_end(ground, fleet.flaws, drained=took is not None)
            judged = judge(ground.directory, LIMITS.attempts_max)
            if keep is None and judged.breaches:
                keep = Path(tempfile.mkdtemp(prefix="chatlock-soak-broken-")) / "histories"
            if keep is not None:
                shutil.copytree(ground.directory, keep, ignore=shutil.ignore_patterns("chat.db*"))
                print(f"the histories are in {keep}", file=sys.stderr)
            return self._summary(judged, fleet.counts + nemesis.counts + self._departures(), took)

    def _storm(self, ground: Ground, fleet: Fleet) -> Nemesis:
        weather, began = self._weather, time.monotonic()
        weather["storm"] = 1
        nemesis = Nemesis(ground, fleet, self._random, self._seconds)
        look_at = 0.0
        while (elapsed := time.monotonic() - began) < self._seconds:
            fleet.look()
            nemesis.look()
            if elapsed >= look_at:
                look_at = elapsed + 1.0
                weather["generation"] = int(elapsed / GENERATION_S)
                backlog = ground.backlog()
                weather["held"] = int(backlog is None or backlog[0] > BACKLOG_MAX)
                self._show(elapsed, fleet, backlog)
            time.sleep(0.02)
        nemesis.heal()
        return nemesis

    def _show(self, elapsed: float, fleet: Fleet, backlog: tuple[int, int, int] | None) -> None:
        """The progress line."""
        if int(elapsed) % 10:
            return
        accepted, lost = self._weather.total("accepted"), self._weather.total("lost_claim")
        pending = "database away" if backlog is None else f"{backlog[0]} pending, {backlog[1]} running"
        print(
            f"{elapsed:6.0f} s  {accepted} acknowledged ({accepted / max(elapsed, 1):.0f}/s), {pending}, "
            f"{fleet.counts['kills']} kills, {fleet.counts['stops past the lease']} stops, {lost} claims lost, "
            f"{len(fleet.flaws)} flaws",
            file=sys.stderr,
            flush=True,
        )

    def _drain(self, ground: Ground, fleet: Fleet, nemesis: Nemesis) -> float | None:
        """Waits until nothing is left to do; how long that took, None if something was left."""
        began, quiet, look_at = time.monotonic(), 0, 0.0
        history = History(name="operator", path=ground.directory / "history-operator.jsonl")
        with Chatlock(ground.url, tenant=TENANT, poller=False, limits=LIMITS) as operator:
            while (elapsed := time.monotonic() - began) < DRAIN_S:
                fleet.look()
                if elapsed >= look_at:
                    look_at = elapsed + 0.5
                    for thread in ground.parked():
                        operator.resume(thread, actor="soak")
                    for thread, question in ground.held():
                        history.asked(Key(TENANT, thread), "cancel", question)
                        operator.cancel(thread, question)
                    backlog = ground.backlog()
                    quiet = quiet + 1 if backlog == (0, 0, 0) else 0
                    if quiet == 4:
                        return round(elapsed, 1)
                time.sleep(0.02)
        left = f"something was left to do {DRAIN_S:.0f} s after the storm"
        Log(ground.directory / "agent-operator.jsonl").flaw("nothing_left", left)
        return None

    def _summary(self, judged: Judged, counts: Counter[str], took: float | None) -> dict[str, Any]:
        by_role = shares(self._weather, self._roles)
        rare = {
            name: (judged.messages["dead"] if name == "dead" else self._weather.total(name), int(self._seconds / every))
            for name, every in RARE.items()
        } | at_work(by_role, int(self._seconds >= ALL_FROM_S))
        promises = judged.by_promise()
        verdict = verdict_of(promises, rare)
        return {
            "verdict": verdict,
            "database": self._kind,
            "seconds": self._seconds,
            "seed": self._seed,
            "acknowledged": judged.acknowledged,
            "promises broken": promises,
            "breaches": {name: found[:BREACHES_SHOWN] for name, found in judged.breaches.items()},
            "rare paths": {name: {"reached": reached, "least": least} for name, (reached, least) in rare.items()},
            "faults": dict(sorted(counts.items())),
            "outcomes told": dict(judged.told.most_common()),
            "messages": dict(judged.messages.most_common()),
            "turns": dict(judged.turns.most_common()),
            "events judged": judged.events,
            "by role": by_role,
            "seconds to drain": took,
            "python": platform.python_version(),
        }

    def _departures(self) -> Counter[str]:
        return Counter({"callers that went away": self._weather.total("left_early")})


def note_end(ground: Ground, flaws: Sequence[str], *, drained: bool) -> None:
    """What the tables hold, chatlock's and the application's, and what went wrong with processes."""
    log = Log(ground.directory / "agent-end.jsonl")
    with Chatlock(ground.url, tenant=TENANT, poller=False, limits=LIMITS) as chat:
        for breach in chat.verify().breaches:
            log.flaw("verify", f"{breach.invariant}: {breach.text} ({breach.thread})")
        History(name="end", path=ground.directory / "history-end.jsonl").tables(chat, drained=drained)
    for thread, token, nonce in ground.rows("SELECT thread, token, nonce FROM soak_replies"):
        log.write(log="reply", thread=thread, token=token, nonce=nonce)
    for number, thread, token in ground.rows("SELECT id, thread, token FROM soak_effects"):
        log.write(log="effect", id=number, thread=thread, token=token)
    for flaw in flaws:
        log.flaw("process", flaw)


def shares(weather: Weather, roles: Sequence[str]) -> dict[str, dict[str, int]]:
    """What the processes of each role had accepted, and the turns that they began."""
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for number, role in enumerate(roles):
        slot = weather.slot(number)
        counted[role].update(accepted=slot["accepted"], began=slot["began"])
    return {role: dict(share) for role, share in counted.items()}


def at_work(by_role: dict[str, dict[str, int]], least: int) -> dict[str, tuple[int, int]]:
    """How often each role did something, and must have."""
    return {f"{role} at work": (sum(share.values()), least) for role, share in by_role.items()}


def warm_up(ground: Ground) -> None:
    """Compiles, before the first process is forked, most of what each needs."""
    life = Life(Birth(ground, ground.weather.slot(0), "warm-0", "warm"), polls=False)
    with life.chat as chat:
        chat.handler()(Agent(life))
        for number in range(8):
            Caller(life, Agent(life)).submit("warm", f"warm-{number}", {"kind": "ok"})
            chat.sweep_once()
    life.application.dispose()


def verdict_of(promises: dict[str, int], rare: dict[str, tuple[int, int]]) -> str:
    """In a word.  promises: how often each was broken; rare: how often each path was reached, and must be."""
    if any(promises.values()):
        return "broken"
    return "passed" if all(reached >= least for reached, least in rare.values()) else "invalid"
