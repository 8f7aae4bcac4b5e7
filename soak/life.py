"""One life of one process: its client, what it notes, and how it ends."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from sqlalchemy.exc import DBAPIError, PendingRollbackError

from chatlock import Chatlock, Limits
from chatlock.errors import ChatlockError, Closed
from chatlock.flows import place_of
from chatlock.testing import History
from chatlock.wake.redis import RedisWake
from soak.connections import Breaks
from soak.ground import Ground
from soak.weather import KILL, Slot, Weather

TENANT = "acme"
LIMITS = Limits(
    beat_ms=250,
    lease_ms=1_000,
    sweep_ms=300,
    backoff_ms=100,
    backoff_max_ms=1_500,
    attempts_max=4,
    stalls_max=12,
    hand_offs_max=5,
    mid_fetches_max=3,
    window_floor_ms=4_000,
    window_default_ms=4_000,
    window_cap_ms=6_000,
)
CUT_SHARE = 0.004
EXIT_CODE = 77
DEFECTS = frozenset({"AssertionError", "IntegrityError", "NoResultFound", "TypeError", "AttributeError", "KeyError"})


PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Nobody outlives who started them, however that ended."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Poisoned(Exception):
    """What the agent raises over a message that it can never answer."""


EXPECTED = (ChatlockError, Poisoned, DBAPIError, PendingRollbackError)
"""What a call may raise where connections break; the last two come from the application's own transactions."""


class Log:
    """The agent's own log, which knows nothing of chatlock's tables; each line is in the file when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **line: object) -> None:
        """One line."""
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def flaw(self, check: str, text: str) -> None:
        """A breach that was seen at once."""
        self.write(check=check, flaw=text)


class Birth(NamedTuple):
    """What one life of a process begins with."""

    ground: Ground
    slot: Slot
    name: str
    seed: str
    acts: int | None = None
    """How often it does each of its works; None: until it is told to end."""


class Life:
    """What a process has from its fork to its end.  Its files outlive it."""

    def __init__(self, birth: Birth, *, polls: bool, make: Callable[..., Any] = Chatlock) -> None:
        """make: the client's class, or what makes a client of it."""
        self.ground, self.slot, self.name, seed, self._acts = birth
        ground, name = self.ground, self.name
        self.weather: Weather = ground.weather
        self.random = Random(seed)
        self.ending = threading.Event()
        self.history = History(name=name, path=ground.directory / f"history-{name}.jsonl")
        self.log = Log(ground.directory / f"agent-{name}.jsonl")
        self.breaks = Breaks(self.weather, self.slot, self.random, CUT_SHARE)
        self.application = self.breaks.on(ground.application_engine())
        wake = RedisWake(ground.redis_url) if ground.redis_url else None
        self.chat = make(ground.url, tenant=TENANT, poller=polls, limits=LIMITS, turns_max=8, pool_size=8, wake=wake)
        self.breaks.attach(self.chat._executor)
        if self.random.random() < (0.7 if polls else 0.2):  # else the hot statements are their own commit, as elsewhere
            self.chat._executor.points = self.point

    def flaw(self, text: str) -> None:
        """Something that may never happen."""
        self.log.flaw("process", f"{self.name}: {text}")

    def point(self, name: str) -> None:
        """The client is at a named point."""
        act = self.slot.take(name)
        if act and self.weather["storm"]:
            os.kill(os.getpid(), signal.SIGKILL if act == KILL else signal.SIGSTOP)

    def watch_log(self) -> None:
        """A defect that the product catches and logs is a flaw."""
        logging.getLogger("chatlock").addHandler(Swallowed(self))

    # -- its course --------------------------------------------------------------------------------------------------
    def run(self, *works: Callable[[], None]) -> None:
        """Each work over and over, in an OS thread of its own, until all is done or the process is told to end."""
        signal.signal(signal.SIGTERM, lambda *_: self.ending.set())
        self.watch_log()
        threads = [threading.Thread(target=self._over_and_over, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        parent = os.getppid()
        while not self.ending.wait(0.2) and not self.weather["ended"]:
            if os.getppid() != parent:
                os._exit(1)
            if self._acts is not None and not any(thread.is_alive() for thread in threads):
                break
        self.ending.set()
        self.chat.close(drain_ms=self.random.choice([0, 300, 1_000]))

    def _over_and_over(self, work: Callable[[], None]) -> None:
        for _ in repeat(None) if self._acts is None else repeat(None, self._acts):
            if self.ending.is_set():
                return
            try:
                work()
            except Closed:
                return
            except EXPECTED as error:
                if "refused the operation" in str(error):
                    self.flaw(f"{error}: {error.__context__} {traceback.format_tb(error.__traceback__)[1:]}")
                self.slot.add("store_unavailable")
                self.ending.wait(0.1)
            except Exception:
                self.flaw(traceback.format_exc(limit=-3))
                return

    def rest(self, seconds: float) -> None:
        """Lets time pass, unless the process is to end."""
        self.ending.wait(seconds)

    def work_for(self, seconds: float) -> None:
        """What an agent does between two calls of chatlock, whatever happens meanwhile."""
        time.sleep(seconds)


class Swallowed(logging.Handler):
    """What the product caught and logged: a defect that would otherwise go unseen."""

    def __init__(self, life: Life) -> None:
        super().__init__(logging.WARNING)
        self._life = life

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        name = type(error).__name__ if error is not None else vars(record).get("error")
        if error is not None or name in DEFECTS:
            where = place_of(error) if error is not None else name
            self._life.flaw(f"swallowed in {record.getMessage()}: {where}: {error}")
