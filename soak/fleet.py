"""The processes of a soak: forked, counted as they die or stand still, and started again."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from random import Random

from soak.ground import Ground
from soak.life import EXIT_CODE, LIMITS, Birth, die_with_parent
from soak.weather import Slot
from tests.support.processes import exit_with

LIVES = {
    "submitter": "soak.roles:run_submitter",
    "worker": "soak.roles:run_worker",
    "caller": "soak.roles:run_caller",
    "async": "soak.async_roles:run_async",
    "service": "soak.hosted:run_service",
    "rq": "soak.hosted:run_rq",
    "web": "soak.web:run_web",
    "visitor": "soak.visitors:run_visitor",
}
"""What a process of each role runs."""
FEW = ("submitter", "submitter", "submitter", "worker", "worker", "caller", "caller")
ALL = (*FEW[:3], "worker", "caller", "async", "service", "web", "visitor")
ALL_WITH_RQ = (*FEW[:3], "caller", "async", "service", "web", "visitor", "rq", "rq")
ALL_FROM_S = 20
END_S = 20.0
STOPPED_S = (0.1, 0.8)
"""How long past the lease a process stands still; what it holds, others wait for."""


@dataclass(eq=False)
class Post:
    """One place in the fleet, held by one process after another."""

    number: int
    role: str
    slot: Slot
    pid: int = 0
    lives: int = 0
    start_at: float = 0.0
    stopped_at: float = 0.0
    continue_at: float = 0.0
    ending: bool = False

    @property
    def name(self) -> str:
        return f"{self.role}{self.number}-{self.lives}"


class Fleet:
    """All posts.  Only `look` learns what became of a process, so that every end is counted once."""

    def __init__(self, ground: Ground, roles: Sequence[str], random: Random, seed: int) -> None:
        self.ground, self._random, self._seed = ground, random, seed
        self.posts = [Post(n, role, ground.weather.slot(n)) for n, role in enumerate(roles)]
        # imported before any fork, so that all share it
        self._lives: dict[str, Callable[[Birth], None]] = {role: resolve_name(LIVES[role]) for role in roles}
        self.counts: Counter[str] = Counter()
        self.flaws: list[str] = []

    @property
    def living(self) -> list[Post]:
        return [post for post in self.posts if post.pid]

    def look(self, *, restart: bool = True) -> None:
        """Counts who has died or stands still, lets those go on that stood still long enough, fills empty posts."""
        now = time.monotonic()
        for post in self.posts:
            if post.pid:
                self._observe(post, now)
            if post.stopped_at and now >= post.continue_at:
                self._continue(post, now)
            if restart and not post.pid and now >= post.start_at:
                self._start(post)

    def _observe(self, post: Post, now: float) -> None:
        pid, status = os.waitpid(post.pid, os.WNOHANG | os.WUNTRACED)
        if not pid:
            return
        if os.WIFSTOPPED(status):
            post.stopped_at = now
            post.continue_at = now + LIMITS.lease_ms / 1000 + self._random.uniform(*STOPPED_S)
            return
        post.pid, post.stopped_at, post.start_at = 0, 0.0, now + self._random.choice([0.0, 0.0, 1.0])
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:
            self.counts["kills"] += 1
        elif code == EXIT_CODE:
            self.counts["exits in a handler"] += 1
        elif post.ending and code in (0, -signal.SIGTERM):  # the latter: it had not begun
            self.counts["closes"] += 1
        else:
            self.flaws.append(f"{post.name} ended with {code}")

    def _continue(self, post: Post, now: float) -> None:
        if now - post.stopped_at > LIMITS.lease_ms / 1000:
            self.counts["stops past the lease"] += 1
        post.stopped_at = 0.0
        self.send(post, signal.SIGCONT)

    def _start(self, post: Post) -> None:
        post.lives += 1
        post.ending = False
        post.slot.disarm()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            birth = Birth(self.ground, post.slot, post.name, f"{self._seed}-{post.name}")
            exit_with(lambda: _live(self._lives[post.role], birth))
        post.pid = pid

    def send(self, post: Post, number: signal.Signals) -> None:
        """A signal, if there is a process; its own children stand still and go on with it."""
        if not post.pid:
            return
        post.ending = post.ending or number == signal.SIGTERM
        os.kill(post.pid, number)
        if number in (signal.SIGSTOP, signal.SIGCONT):
            for child in _children(post.pid):
                with suppress(ProcessLookupError):
                    os.kill(child, number)

    def go_on(self) -> None:
        """Nobody stands still any more."""
        for post in self.posts:
            if post.stopped_at:
                post.continue_at = 0.0

    def end(self) -> None:
        """Every process closes its client and ends; who does not within 20 s is a flaw."""
        for post in self.living:
            self.send(post, signal.SIGTERM)
        deadline = time.monotonic() + END_S
        while self.living and time.monotonic() < deadline:
            self.look(restart=False)
            time.sleep(0.02)
        self.flaws += [f"{post.name} did not end within {END_S:.0f} s" for post in self.living]
        self.kill()

    def kill(self) -> None:
        """Leaves nobody behind."""
        for post in self.living:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(post.pid, signal.SIGKILL)
                os.waitpid(post.pid, 0)
            post.pid = 0


def roles_of(kind: str, seconds: float) -> tuple[str, ...]:
    """Who takes part: in a run of seconds not everyone, for each has to start."""
    if seconds < ALL_FROM_S:
        return FEW
    return ALL if kind == "sqlite" else ALL_WITH_RQ


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _live(life: Callable[[Birth], None], birth: Birth) -> int:
    faulthandler.enable()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    life(birth)
    return 0
