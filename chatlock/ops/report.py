"""report: what an operator sees of threads, read without locks: lists, the stuck ones, and what `why` is told from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Text, and_, cast, func, not_, or_, select, tuple_
from sqlalchemy.engine import Connection

from chatlock.dialects import stable_ms
from chatlock.inputs import Key
from chatlock.ops.base import HELD, b, named, of_those, of_thread, run
from chatlock.schema import audit, due, meta, threads, turns


@dataclass(frozen=True)
class Scope:
    """Whose rows: one thread's, one tenant's, or (tenant None) all tenants'."""

    tenant: str | None
    thread: str | None = None

    def bound(self) -> dict[str, str | None]:
        """As bind values."""
        return {} if self.tenant is None else {"tenant": self.tenant, "thread": self.thread}


class Scoped(NamedTuple):
    """A statement in a form for each kind of scope; lists of threads have none for one thread."""

    tenant: Any
    all: Any
    thread: Any = None

    def on(self, scope: Scope) -> Any:
        """The form for this scope."""
        if scope.tenant is None:
            return self.all
        return self.tenant if scope.thread is None else self.thread


def scoped(name: str, table: Any, build: Callable[..., Any]) -> Scoped:
    """Registers the forms for a tenant and for all; `build` gets the conditions that narrow it to its scope."""
    return Scoped(named(name, build(table.c.tenant == b("tenant"))), named(f"{name}_of_all", build()))


def scoped_to_thread(
    name: str, table: Any, build: Callable[..., Any], build_for_thread: Callable[..., Any] | None = None
) -> Scoped:
    """As scoped, with a form for one thread, which may be built otherwise."""
    for_thread = named(f"{name}_of_thread", (build_for_thread or build)(of_thread(table)))
    return scoped(name, table, build)._replace(thread=for_thread)


def optional(column: Any, name: str) -> Any:
    """column = value, or anything where the value is None.  PostgreSQL cannot tell the type of a bare NULL."""
    value = cast(b(name), Text)
    return or_(value.is_(None), column == value)


def after(table: Any) -> Any:
    """Rows behind the last one of the page before, in the order of the primary key."""
    return tuple_(table.c.tenant, table.c.thread_id) > tuple_(b("after_tenant"), b("after_thread"))


@dataclass(frozen=True)
class ThreadReport:
    """One thread as it is now.  Times are in ms of the database's clock; `now` is that clock.

    due_at and dispatched_until are its due row's; None: it has none.
    """

    tenant: str
    thread_id: str
    incarnation: int
    agent: str
    status: str
    token: int
    owner: str | None
    claimed_at: int | None
    expires_at: int | None
    window_ends_at: int | None
    lease_ms: int | None
    beat: int
    last_seq: int
    fetched_seq: int
    done_seq: int
    holes: int
    attempts: int
    stalls: int
    not_before: int
    quiet_until: int
    awaiting: str | None
    awaiting_rule: str | None
    created_at: int
    due_at: int | None
    dispatched_until: int | None
    now: int

    @property
    def key(self) -> Key:
        """Its key."""
        return Key(self.tenant, self.thread_id)

    @property
    def pending(self) -> int:
        """How many messages wait or are in its turn."""
        return self.last_seq - self.done_seq - self.holes

    @property
    def turn(self) -> int | None:
        """The running turn's token."""
        return self.token if self.status == "running" else None


_with_due = threads.outerjoin(due, and_(due.c.tenant == threads.c.tenant, due.c.thread_id == threads.c.thread_id))
_OF_THREADS = [c for c in ThreadReport.__dataclass_fields__ if c not in ("due_at", "dispatched_until", "now")]
_COLUMNS = [*(threads.c[name] for name in _OF_THREADS), due.c.due_at, due.c.dispatched_until, stable_ms().label("now")]
_of_running = and_(
    threads.c.tenant == turns.c.tenant,
    threads.c.thread_id == turns.c.thread_id,
    threads.c.token == turns.c.token,
)
_running = (turns.c.state == "running", threads.c.status == "running")


def _threads(*of_tenant: Any) -> Any:
    return (
        select(*_COLUMNS)
        .select_from(_with_due)
        .where(
            *of_tenant,
            after(threads),
            optional(threads.c.status, "status"),
            optional(threads.c.agent, "agent"),
        )
        .order_by(threads.c.tenant, threads.c.thread_id)
        .limit(b("limit"))
    )


def _from_turns(*conditions: Any) -> Any:
    joined = turns.join(threads, _of_running).outerjoin(
        due, and_(due.c.tenant == turns.c.tenant, due.c.thread_id == turns.c.thread_id)
    )
    return select(*_COLUMNS).select_from(joined).where(*_running, *conditions)


def _running_threads(*of_tenant: Any) -> Any:
    return (
        _from_turns(*of_tenant, after(turns), optional(threads.c.agent, "agent"))
        .order_by(turns.c.tenant, turns.c.thread_id)
        .limit(b("limit"))
    )


def _oldest_running(*of_tenant: Any) -> Any:
    return _from_turns(*of_tenant).order_by(threads.c.claimed_at).limit(b("limit"))


def _stale(*of_tenant: Any) -> Any:
    return (
        _from_turns(*of_tenant, threads.c.expires_at < stable_ms() - b("older"), optional(threads.c.agent, "agent"))
        .order_by(threads.c.expires_at)
        .limit(b("limit"))
    )


def _overdue(*of_tenant: Any) -> Any:
    return (
        select(*_COLUMNS)
        .select_from(due.join(threads, and_(threads.c.tenant == due.c.tenant, threads.c.thread_id == due.c.thread_id)))
        .where(
            *of_tenant,
            due.c.due_at < stable_ms() - b("older"),
            threads.c.status == "idle",
            threads.c.last_seq > threads.c.done_seq,
            not_(HELD),
            optional(threads.c.agent, "agent"),
        )
        .order_by(due.c.due_at)
        .limit(b("limit"))
    )


THREADS = scoped("report.threads", threads, _threads)
RUNNING = scoped("report.running", turns, _running_threads)
OLDEST_RUNNING = scoped("report.oldest_running", turns, _oldest_running)
STALE = scoped("report.stale", turns, _stale)
OVERDUE = scoped("report.overdue", due, _overdue)
THREAD = named("report.thread", select(*_COLUMNS).select_from(_with_due).where(of_thread(threads)))
SERVICE = named(
    "report.service",
    select(
        select(func.min(due.c.due_at)).scalar_subquery(),
        select(meta.c.value).where(meta.c.name == "windows_through").scalar_subquery(),
    ),
)
RUNNING_OF_EACH = named(
    "report.running_of_each",
    select(turns.c.tenant, turns.c.agent, func.count())
    .where(turns.c.state == "running")
    .group_by(turns.c.tenant, turns.c.agent),
)


def _last_turns() -> Any:
    ended = turns.alias("ended")
    last = (
        select(func.max(ended.c.token))
        .where(
            ended.c.tenant == threads.c.tenant,
            ended.c.thread_id == threads.c.thread_id,
            ended.c.incarnation == threads.c.incarnation,
            ended.c.state != "running",
        )
        .correlate(threads)
        .scalar_subquery()
    )
    of_last = and_(
        turns.c.tenant == threads.c.tenant,
        turns.c.thread_id == threads.c.thread_id,
        turns.c.incarnation == threads.c.incarnation,
        turns.c.token == last,
    )
    columns = (threads.c.tenant, threads.c.thread_id, turns.c.state, turns.c.error)
    return of_those(select(*columns).select_from(threads.join(turns, of_last)), columns[:2])


LAST_TURNS = named("report.last_turns", _last_turns())
LAST_TURNS_MAX = 1_000
PARKED_BY = named(
    "report.parked_by",
    select(audit.c.actor, audit.c.reason)
    .where(of_thread(audit), audit.c.action == "park", audit.c.token >= b("token") - 1)
    .order_by(audit.c.audit_id.desc())
    .limit(1),
)


@dataclass(frozen=True)
class Page:
    """Which part of a list: at most `limit` rows behind the key `after`."""

    limit: int
    after: Key

    def bound(self) -> dict[str, Any]:
        """As bind values."""
        return {"limit": self.limit, "after_tenant": self.after.tenant, "after_thread": self.after.thread}


@dataclass(frozen=True)
class Service:
    """How the pollers and workers are, as far as the tables tell.

    oldest_due_at: of the whole database.  swept_at: until when a poller has counted runs, which it does every minute.
    """

    oldest_due_at: int | None
    swept_at: int


@dataclass(frozen=True)
class Surroundings:
    """What `why` reads beside the thread.

    running_of_agent, running_of_tenant, running: turns of the thread's agent, of its tenant and of all that run now.
    ended, error: how the thread's last turn ended.  parked_by: actor and reason of the act that parked it; None: no
    person did.
    """

    service: Service
    running_of_agent: int
    running_of_tenant: int = 0
    running: int = 0
    ended: str | None = None
    error: str | None = None
    parked_by: tuple[str, str] | None = None


def list_threads(
    conn: Connection, scope: Scope, page: Page, *, status: str | None = None, agent: str | None = None
) -> list[ThreadReport]:
    """Threads by key.  Those that run are found by the index of running turns; any other status is filtered."""
    bound = scope.bound() | page.bound() | {"agent": agent}
    if status == "running":
        rows = run(conn, RUNNING.on(scope), None, **bound)
    else:
        rows = run(conn, THREADS.on(scope), None, **bound, status=status)
    return [ThreadReport(*row) for row in rows]


def list_oldest_running(conn: Connection, scope: Scope, limit: int) -> list[ThreadReport]:
    """Threads that run, the oldest claim first."""
    rows = run(conn, OLDEST_RUNNING.on(scope), None, **scope.bound(), limit=limit)
    return [ThreadReport(*row) for row in rows]


def list_stuck(
    conn: Connection, scope: Scope, older_ms: int, limit: int, *, agent: str | None = None
) -> list[ThreadReport]:
    """Threads that should have moved at least older_ms ago, longest first: running past their lease, or due and not
    taken.
    """
    bound = scope.bound() | {"older": older_ms, "limit": limit, "agent": agent}
    overdue = [ThreadReport(*row) for row in run(conn, OVERDUE.on(scope), None, **bound)]
    return sorted([*list_stale(conn, scope, older_ms, limit, agent=agent), *overdue], key=stuck_since)[:limit]


def list_stale(
    conn: Connection, scope: Scope, older_ms: int, limit: int, *, agent: str | None = None
) -> list[ThreadReport]:
    """Threads whose running turn's lease passed at least older_ms ago, longest first."""
    bound = scope.bound() | {"older": older_ms, "limit": limit, "agent": agent}
    return [ThreadReport(*row) for row in run(conn, STALE.on(scope), None, **bound)]


def stuck_since(thread: ThreadReport) -> int:
    """Since when a stuck thread should have moved."""
    since = thread.expires_at if thread.status == "running" else thread.due_at
    return since if since is not None else thread.now


def read_thread(conn: Connection, key: Key) -> ThreadReport | None:
    """One thread; None: this tenant has no such thread."""
    row = run(conn, THREAD, key).one_or_none()
    return None if row is None else ThreadReport(*row)


def read_service(conn: Connection) -> Service:
    """How the pollers and workers of all tenants are."""
    oldest_due_at, swept_at = run(conn, SERVICE).one()
    return Service(oldest_due_at, int(swept_at or 0))


def read_surroundings(conn: Connection, listed: Sequence[ThreadReport]) -> list[Surroundings]:
    """What `why` needs beside each thread's own row: three statements for up to LAST_TURNS_MAX threads, and one for
    each that is parked.  Guard: one snapshot.
    """
    service, of_agent, of_tenant = read_service(conn), Counter[str](), Counter[str]()
    for tenant, agent, count in run(conn, RUNNING_OF_EACH):
        of_agent[agent] += count
        of_tenant[tenant] += count
    ended, around = _ended(conn, listed), []
    for thread in listed:
        state, error = ended.get(thread.key, (None, None))
        parked_by = _parked_by(conn, thread) if thread.status == "parked" else None
        running = (of_agent[thread.agent], of_tenant[thread.tenant], of_tenant.total())
        around.append(Surroundings(service, *running, state, error, parked_by))
    return around


def _ended(conn: Connection, listed: Sequence[ThreadReport]) -> dict[Key, tuple[str, str | None]]:
    """How each thread's last turn ended, and with what error."""
    ended = {}
    for first in range(0, len(listed), LAST_TURNS_MAX):
        asked = [(t.tenant, t.thread_id) for t in listed[first : first + LAST_TURNS_MAX]]
        for tenant, thread_id, state, error in run(conn, LAST_TURNS, waited=asked):
            ended[Key(tenant, thread_id)] = (state, error)
    return ended


def _parked_by(conn: Connection, thread: ThreadReport) -> tuple[str, str] | None:
    row = run(conn, PARKED_BY, thread.key, token=thread.token).one_or_none()
    return None if row is None else (row.actor, row.reason)
