"""What goes wrong, and how often."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from random import Random

from soak.fleet import Fleet, Post
from soak.ground import Ground
from soak.weather import KILL, POINTS_OF, STOP, soon

ARMED_S = 4.0
FULL_S = 1.0


class Nemesis:
    """Acts at random times, each kind at a mean interval of its own."""

    def __init__(self, ground: Ground, fleet: Fleet, random: Random, seconds: float) -> None:
        self._ground, self._fleet, self._random = ground, fleet, random
        self.counts: Counter[str] = Counter()
        self._steps: list[tuple[float, int]] = []
        acts: list[tuple[float, Callable[[], None]]] = [
            (5, self._kill),
            (5, self._stop),
            (30, self._close),
            (20, self._step_clock),
            (25, self._fill_disk),
        ]
        if ground.kind == "postgres":
            acts += [(45, self._crash_server), (15, self._break_redis)]
        # a short run sees each kind too
        self._acts = [(min(mean, seconds / 4), act) for mean, act in acts]
        now = time.monotonic()
        self._due = {act: now + soon(random, mean) for mean, act in self._acts}
        self._empty_at = 0.0
        self._armed: list[tuple[float, Post, int]] = []

    def look(self) -> None:
        """Does what is due."""
        now = time.monotonic()
        for mean, act in self._acts:
            if now >= self._due[act]:
                act()
                self._due[act] = now + soon(self._random, mean)
        if self._empty_at and now >= self._empty_at:
            self._ground.fill_disk(False)
            self._empty_at = 0.0
        for at, by_ms in [step for step in self._steps if now >= step[0]]:
            self._steps.remove((at, by_ms))
            self._ground.step_clock(by_ms)
        for armed in [armed for armed in self._armed if now >= armed[0]]:
            self._armed.remove(armed)
            self._at_random(armed[1], armed[2])

    def _some(self, most: int) -> list[Post]:
        living = [post for post in self._fleet.living if not post.stopped_at]
        return self._random.sample(living, min(len(living), self._random.choice([1, 1, 2, most])))

    def _kill(self) -> None:
        self._at_points(self._some(3), KILL)

    def _stop(self) -> None:
        self._at_points(self._some(4), STOP)

    def _at_points(self, posts: list[Post], act: int) -> None:
        """Half of them at a named point, as soon as they come to it; the others wherever they are."""
        for post in posts:
            if self._random.random() < 0.5:
                post.slot.arm(self._random.choice(POINTS_OF[post.role]), act)
                self._armed.append((time.monotonic() + ARMED_S, post, act))
            else:
                self._fleet.send(post, signal.SIGKILL if act == KILL else signal.SIGSTOP)

    def _at_random(self, post: Post, act: int) -> None:
        """It never came to its point."""
        if post.slot["point"] and post.pid and not post.stopped_at:
            post.slot.disarm()
            self._fleet.send(post, signal.SIGKILL if act == KILL else signal.SIGSTOP)

    def _close(self) -> None:
        """Every process is told to end, as in a deployment; its successor starts at once."""
        self.counts["rolling SIGTERM"] += 1
        for post in self._fleet.living:
            if not post.ending:
                self._fleet.send(post, signal.SIGTERM)

    def _step_clock(self) -> None:
        self.counts["clock steps"] += 1
        by_ms = self._random.choice([-3_000, -400, 400, 1_500, 20_000])
        self._ground.step_clock(by_ms)
        self._steps.append((time.monotonic() + 4.0, -by_ms))

    def _fill_disk(self) -> None:
        self.counts["disk full"] += 1
        self._ground.fill_disk(True)
        self._empty_at = time.monotonic() + FULL_S

    def _crash_server(self) -> None:
        self.counts["PostgreSQL crashes"] += 1
        self._ground.crash_server()

    def _break_redis(self) -> None:
        flush = self._random.random() < 0.7
        self.counts["Redis FLUSHALL" if flush else "Redis restarts"] += 1
        self._ground.break_redis(flush)

    def heal(self) -> None:
        """From now on nothing goes wrong any more.  A clock that was set back is put right: leases end by it."""
        self._ground.weather["storm"] = 0
        for post in self._fleet.posts:
            post.slot.disarm()
        self._fleet.go_on()
        self._ground.fill_disk(False)
        behind = -min(0, self._ground.weather["offset_ms"])
        if behind:
            self._ground.step_clock(behind)
