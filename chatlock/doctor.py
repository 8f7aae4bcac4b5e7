"""What is wrong with an installation: each check is a judgement over what was read, with the remedy in its text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata

from sqlalchemy.engine import Connection

from chatlock import migrations
from chatlock.errors import LoginRefused, SchemaMismatch
from chatlock.executor import Executor
from chatlock.ops import diagnose, load, report, runs
from chatlock.ops.diagnose import Server
from chatlock.ops.report import Scope, Service
from chatlock.ops.runs import CutOff
from chatlock.why import POLLER_UNSEEN_MS
from chatlock.wording import counted, span

OVERDUE_MS = 60_000
STUCK_MS = 30_000
CLOCK_MS = 2_000
CUT_OFF_MS = 7 * 86_400_000
REDIS_S = 2.0
RQ_LEAST = 3
# where a reset of the write-ahead log may corrupt the file, if a checkpoint and a commit meet
SQLITE_FIXED = (3, 51, 3)
SQLITE_BACKPORTS = {(3, 50): 7, (3, 44): 6}


class Level(StrEnum):
    """How a check came out.  Only FAILED makes the doctor's exit code 1."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """One check: its name, how it came out, and what to do."""

    check: str
    level: Level
    text: str


def examine(executor: Executor, *, pooler: str | None, redis_url: str | None) -> Iterator[Finding]:
    """Every check, in order; where the tables are not as this version needs them, those on the tables are left out,
    and where the server refuses the login, all others.

    executor: of at least two connections.  pooler: as the processes are set.  Raises StoreUnavailable.
    """
    found: list[Server] = []
    try:
        executor.set_up(lambda conn: found.append(diagnose.read_server(conn)))
    except LoginRefused as error:
        yield Finding("database", Level.FAILED, str(error))
        return
    server = found[-1]
    yield judge_server(server)
    if server.product == "sqlite":
        yield judge_wal(server)
    tables = _judge_tables(executor)
    yield tables
    if tables.level is Level.FAILED:
        return
    if server.product == "postgresql":
        yield judge_pooler(_backend_changes(executor), pooler)
    yield _judge_clock(executor)
    now = executor.read("clock", load.read_clock)
    service = executor.read("service", report.read_service)
    yield judge_poller(now, service)
    yield judge_due(now, service)
    yield judge_stuck(len(executor.read("stuck", lambda c: report.list_stale(c, Scope(None), STUCK_MS, 1_000))))
    yield judge_windows(executor.read("cut_off", lambda c: runs.list_cut_off(c, CUT_OFF_MS)))
    yield judge_redis(redis_url)
    yield judge_rq(_version("rq"))


def judge_server(server: Server) -> Finding:
    """Whether chatlock stands on this version."""
    least = migrations.SERVER_LEAST[server.product]
    name = f"{migrations.SERVER_NAMES[server.product]} {_dotted(server.version)}"
    if server.version < least:
        return Finding("database", Level.FAILED, f"{name} is too old: {_dotted(least)} or newer is needed")
    return Finding("database", Level.OK, name)


def judge_wal(server: Server) -> Finding:
    """Whether the file is in WAL mode, and the library without the bug of its reset."""
    if server.journal != "wal":
        return Finding("wal", Level.FAILED, f"the journal mode is {server.journal}, not wal: run `chatlock db upgrade`")
    version = server.version
    fixed = version >= SQLITE_FIXED or version[2] >= SQLITE_BACKPORTS.get((version[0], version[1]), 1_000)
    if fixed:
        return Finding("wal", Level.OK, "this SQLite has the fix of the WAL-reset bug")
    text = (
        f"SQLite {_dotted(version)} has the WAL-reset bug, which can corrupt a file in rare cases;"
        " 3.51.3, 3.50.7 and 3.44.6 have the fix"
    )
    return Finding("wal", Level.WARNING, text)


def _judge_tables(executor: Executor) -> Finding:
    try:
        revision = executor.read("check", migrations.current)
    except SchemaMismatch as error:
        return Finding("tables", Level.FAILED, str(error))
    return Finding("tables", Level.OK, f"revision {revision}")


def _backend_changes(executor: Executor) -> bool:
    """Whether one connection of ours is served by another backend once a second one has taken the first's."""

    def op(conn: Connection) -> bool:
        before = diagnose.backend(conn)
        return executor.snapshot("doctor.pooler", lambda other: diagnose.backend(conn) != before)

    return executor.read("doctor.pooler", op)


def judge_pooler(changes: bool, pooler: str | None) -> Finding:
    """Whether the setting agrees with what is between us and the database."""
    if changes and pooler is None:
        text = 'a transaction pooler is in between: set pooler="transaction" (CHATLOCK_POOLER=transaction)'
        return Finding("pooler", Level.FAILED, text)
    return Finding("pooler", Level.OK, "a transaction pooler, as set" if changes else "connections are direct")


def _judge_clock(executor: Executor) -> Finding:
    before = time.time()
    database_ms = executor.read("clock", load.read_clock)
    return judge_clock(database_ms - int((before + time.time()) / 2 * 1_000))


def judge_clock(ahead_ms: int) -> Finding:
    """How far the database's clock is ahead of this machine's.  Only the database's decides; logs are of both."""
    if abs(ahead_ms) <= CLOCK_MS:
        return Finding("clock", Level.OK, f"the database's clock is {ahead_ms} ms ahead of this machine's")
    where = "ahead of" if ahead_ms > 0 else "behind"
    text = f"the database's clock is {span(abs(ahead_ms))} {where} this machine's: times in logs do not match its own"
    return Finding("clock", Level.WARNING, text)


def judge_poller(now: int, service: Service) -> Finding:
    """Whether a poller has swept lately."""
    if not service.swept_at:
        return Finding("poller", Level.FAILED, "no poller has swept yet: run `chatlock poller`")
    ago_ms = now - service.swept_at
    if ago_ms > POLLER_UNSEEN_MS:
        return Finding("poller", Level.FAILED, f"no poller has swept for {span(ago_ms)}: run `chatlock poller`")
    return Finding("poller", Level.OK, f"a poller swept within the last {span(max(60_000, ago_ms))}")


def judge_due(now: int, service: Service) -> Finding:
    """Whether threads that are due are taken."""
    late_ms = 0 if service.oldest_due_at is None else now - service.oldest_due_at
    if late_ms > OVERDUE_MS:
        text = f"a thread has been due for {span(late_ms)}: see `chatlock threads ls --all-tenants --stuck`"
        return Finding("due", Level.FAILED, text)
    return Finding("due", Level.OK, "no thread waits for long" if service.oldest_due_at else "no thread waits")


def judge_stuck(count: int) -> Finding:
    """Whether stale turns are freed."""
    if count:
        stale = counted(count, "turn is past its lease", "turns are past their lease")
        text = f"{stale} and not freed: see `chatlock threads ls --all-tenants --stuck`"
        return Finding("stuck", Level.FAILED, text)
    return Finding("stuck", Level.OK, "no turn is past its lease")


def judge_windows(cut_off: list[CutOff]) -> Finding:
    """Whether windows are long enough for the runs that there are."""
    if not cut_off:
        return Finding("windows", Level.OK, "no healthy run was cut off in 7 days")
    agents = "; ".join(f"{c.agent}: {counted(c.runs, 'run')}, the longest took {span(c.longest_ms)}" for c in cut_off)
    text = f"healthy runs were reclaimed at their window in the last 7 days ({agents}): see `chatlock windows backtest`"
    return Finding("windows", Level.WARNING, text)


def judge_redis(url: str | None) -> Finding:
    """Whether Redis answers, where one is set.  Without it nothing is lost but time."""
    if url is None:
        return Finding("redis", Level.OK, "not set")
    try:
        import redis
    except ModuleNotFoundError:
        text = "Redis is set, and its client is missing: install chatlock with its extra 'redis'"
        return Finding("redis", Level.FAILED, text)
    try:
        with redis.Redis.from_url(url, socket_timeout=REDIS_S, socket_connect_timeout=REDIS_S) as client:
            client.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        text = f"Redis does not answer ({type(error).__name__}): wakes and dispatch over RQ are late, nothing is lost"
        return Finding("redis", Level.FAILED, text)
    return Finding("redis", Level.OK, "it answers")


def judge_rq(version: str | None) -> Finding:
    """Whether RQ, where it is installed, is one that chatlock was tried with."""
    if version is None:
        return Finding("rq", Level.OK, "not installed")
    if int(version.partition(".")[0]) < RQ_LEAST:
        return Finding("rq", Level.FAILED, f"RQ {version} is too old: {RQ_LEAST}.0 or newer is needed")
    return Finding("rq", Level.OK, f"RQ {version}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
