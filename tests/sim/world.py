"""What stands under the product in a simulation: processes that die, a database that fails, clocks that step."""

from __future__ import annotations

import logging
import sqlite3
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Engine, event

from chatlock import dialects as real_dialects
from tests.sim.fibers import Killed, Scheduler
from tests.sim.steps import Clock
from tests.sim.truth import Truth

BEGAN_AT_MS = 1_800_000_000_000
MS_PER_DAY = 86_400_000
UNIX_EPOCH_JULIAN = 2_440_587.5
REPEATED = ("submit_hot", "submit", "windows.observe")

spare: dict[str, list[Engine]] = {}
"""Engines of processes that have ended, to be used again: a new one compiles every statement anew."""


class ConnectionLost(Exception):
    """The connection broke: what the executor takes for a server that is away, and tries again."""

    sqlstate = "08006"


def disk_error(code: int = sqlite3.SQLITE_IOERR) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("simulated")
    error.sqlite_errorcode = code
    return error


@dataclass
class Rates:
    """How often something goes wrong: per step of the schedule, or per commit."""

    kill: float = 0.0
    pause: float = 0.0
    interrupt: float = 0.0
    outage: float = 0.0
    clock: float = 0.0
    ack_lost: float = 0.0
    error_before_commit: float = 0.0
    hold: float = 0.0
    budget: int = 0
    gentle: bool = False
    """Nobody falls silent: no turn may then be reclaimed."""


class Process:
    """One simulated process with its client.  Its OS threads are fibers that live here."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.dead = False
        self.paused_until = 0.0
        self.cut_off_until = 0.0
        self.owner: str | None = None
        self.engines: dict[Engine, str] = {}

    def point(self, name: str) -> None:
        """The executor is at a named point."""
        if self.dead:
            raise Killed
        op, _, where = name.rpartition(".")
        fiber = self.world.scheduler.current
        fiber.op, fiber.clock_ms = op, self.world.database_ms
        if where != "commit":
            self.world.scheduler.pause(name)
        elif self.world.happens_at("error_before_commit", op):
            raise self.world.broken(disk_error(), disk_error(sqlite3.SQLITE_FULL))
        elif self.world.random.random() < self.world.rates.hold:
            self.world.scheduler.pause(name)

    def before(self, statement: str) -> None:
        """A statement is on its way to the database."""
        if statement == "ROLLBACK":
            return
        if self.dead:
            raise Killed
        if self.cut_off_until > self.world.scheduler.now:
            raise ConnectionLost

    def after_commit(self) -> None:
        """The database has committed; the process does not know it yet."""
        op = self.world.scheduler.current.op
        self.world.committed(op, self.owner)
        if self.world.happens_at("ack_lost", op):
            raise self.world.broken(disk_error())
        self.world.scheduler.pause(f"{op}.committed")


class Connection(sqlite3.Connection):
    process: Process

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(Cursor)


class Cursor(sqlite3.Cursor):
    def execute(self, statement: str, *parameters: Any) -> Any:
        process = self.connection.process  # type: ignore[attr-defined]
        process.before(statement)
        if statement.startswith("PRAGMA synchronous"):
            statement = "PRAGMA synchronous=OFF"  # processes die here, the machine does not
        done = super().execute(statement, *parameters)
        if statement == "COMMIT":
            process.after_commit()
        return done


def _connect(engine: Any, dialect: Any, record: Any, args: Any, options: Any) -> Connection:
    made: Connection = sqlite3.connect(*args, **options, factory=Connection)
    made.process = engine.simulated_process
    made.create_function("julianday", 1, made.process.world.julianday)
    return made


@dataclass
class World:
    """Everything that one seed decides, and what came of it."""

    path: Path
    random: Random
    rates: Rates
    scheduler: Scheduler
    offset_ms: int = 0
    offset_max_ms: int = 0
    latest_ms: int = 0
    stepped: bool = False
    commits: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    flaws: list[str] = field(default_factory=list)
    name: str = "outside"
    dead: bool = False
    paused_until: float = 0.0
    processes: list[Process] = field(default_factory=list)
    truth: Truth = field(init=False)

    # -- clocks ------------------------------------------------------------------------------------------------------
    @property
    def database_ms(self) -> int:
        return BEGAN_AT_MS + int(self.scheduler.now * 1000) + self.offset_ms

    def julianday(self, when: str) -> float:
        now = self.scheduler.current.clock_ms = self.database_ms
        self.latest_ms = max(self.latest_ms, now)
        return (now + 0.5) / MS_PER_DAY + UNIX_EPOCH_JULIAN  # + 0.5: the product's cast truncates

    # -- faults ------------------------------------------------------------------------------------------------------
    def happens(self, fault: str) -> bool:
        if self.rates.budget <= 0 or self.random.random() >= getattr(self.rates, fault):
            return False
        self.rates.budget -= 1
        self.reached[f"fault {fault}"] += 1
        return True

    def happens_at(self, fault: str, op: str) -> bool:
        """Most commits are a message that is sent again: a fault is kept for the others, most of the time."""
        return (op not in REPEATED or self.random.random() < 0.3) and self.happens(fault)

    def broken(self, *worse: Exception) -> Exception:
        """A connection that is lost, after which the executor tries again; in a gentle world nothing worse."""
        return ConnectionLost() if self.rates.gentle else self.random.choice([ConnectionLost(), *worse])

    def heal(self) -> None:
        """From now on nothing goes wrong any more.  A clock that was set back is put right: leases end by it."""
        self.rates = Rates()
        self.offset_ms = self.offset_max_ms
        for process in self.processes:
            process.cut_off_until = process.paused_until = 0.0

    def disturb(self) -> None:
        """Between two steps, in the hub."""
        if self.rates.budget <= 0:
            return
        alive = [process for process in self.processes if not process.dead]
        if alive and self.happens("kill"):
            self.scheduler.kill(self.random.choice(alive))
        elif alive and self.happens("pause"):
            self.random.choice(alive).paused_until = self.scheduler.now + self.random.choice([1.0, 8.0, 15.0, 40.0])
        elif alive and self.happens("outage"):
            self.random.choice(alive).cut_off_until = self.scheduler.now + self.random.choice([0.3, 3.0, 30.0])
        elif self.happens("clock"):
            self.stepped = True
            steps = [7_000] if self.rates.gentle else [-3_600_000, -12_000, -50, 50, 12_000, 3_600_000]
            self.offset_ms += self.random.choice(steps)
            self.offset_max_ms = max(self.offset_max_ms, self.offset_ms)
        else:
            self._maybe_interrupt()

    def _maybe_interrupt(self) -> None:
        waiting = [f for f in self.scheduler.living if f.interruptible and f.at not in ("start", "lock")]
        if waiting and self.happens("interrupt"):
            fiber = self.random.choice(waiting)
            fiber.interruptible = False
            self.scheduler.switch(fiber, KeyboardInterrupt())

    def committed(self, op: str, owner: str | None) -> None:
        self.commits += 1
        self.reached[f"committed {op}"] += 1
        clock = Clock(self.scheduler.current.clock_ms, self.latest_ms, self.stepped)
        self.flaws += self.truth.look(op, owner, clock)

    # -- the product's seams -----------------------------------------------------------------------------------------
    def make_engine(self, source: Any, **about: Any) -> Engine:
        """The product's engine, over connections that fail when this world says so."""
        process = self.scheduler.current.home
        if not isinstance(process, Process):
            raise AssertionError("only a process opens the database")
        kind = f"{source} {sorted(about.items())}"
        used = spare.setdefault(kind, [])
        engine = used.pop() if used else real_make_engine(source, **about)
        if not hasattr(engine, "simulated_process"):
            event.listen(engine, "do_connect", lambda *how: _connect(engine, *how))
        engine.simulated_process = process  # type: ignore[attr-defined]
        process.engines[engine] = kind
        return engine

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The product's modules meet this world's OS threads, clock, chance and database."""
        instead = {
            "threading": self.scheduler.threading,
            "time": self.scheduler.time,
            "random": self.random,
            "uuid": SimpleNamespace(uuid4=self.uuid4),
            "make_engine": self.make_engine,
        }
        put_back: list[tuple[Any, str, Any]] = []
        for name, module in sorted(sys.modules.items()):
            if not name.startswith("chatlock.") or name.startswith("chatlock.testing"):
                continue
            for attribute, ours in instead.items():
                theirs = vars(module).get(attribute)
                if theirs is sys.modules.get(attribute, real_make_engine):
                    put_back.append((module, attribute, theirs))
                    setattr(module, attribute, ours)
        try:
            yield
        finally:
            for module, attribute, theirs in put_back:
                setattr(module, attribute, theirs)

    def dispose(self) -> None:
        for process in self.processes:
            for engine, kind in process.engines.items():
                engine.dispose()
                spare[kind].append(engine)


real_make_engine = real_dialects.make_engine


class Swallowed(logging.Handler):
    """What the product caught and logged: a defect that would otherwise go unseen."""

    DEFECTS = frozenset(
        {"AssertionError", "IntegrityError", "NoResultFound", "TypeError", "AttributeError", "KeyError"}
    )

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        name = type(error).__name__ if error is not None else vars(record).get("error")
        if error is not None or name in self.DEFECTS:
            self._world.flaws.append(f"swallowed in {record.getMessage()}: {name}: {error or ''}")
