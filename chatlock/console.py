"""What an operator sees and does beside the clients' public methods: reads in one snapshot, and acts that can be tried.

The command line stands on this module; it runs ops through an executor, and prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from chatlock.admin import act
from chatlock.backtest import Judged, Tried, backtest, judged
from chatlock.executor import Executor
from chatlock.inputs import Key
from chatlock.ops import arrivals, contents, forget, load, report, runs, verify
from chatlock.ops.audit import Act, Receipt, write_audit
from chatlock.ops.base import lock
from chatlock.ops.contents import AuditReport, IntentReport, MessageReport, TurnReport
from chatlock.ops.intents import IntentId, send_again
from chatlock.ops.load import Load
from chatlock.ops.report import Page, Scope, ThreadReport
from chatlock.ops.runs import Day
from chatlock.ops.unanswered import free
from chatlock.ops.verify import Verified
from chatlock.protocol import Limits
from chatlock.replay import Arrival
from chatlock.store import jitter
from chatlock.why import Why, explain

__all__ = [
    "AuditReport",
    "Console",
    "Freed",
    "IntentReport",
    "Load",
    "MessageReport",
    "Page",
    "Scope",
    "Stuck",
    "ThreadReport",
    "ThreadView",
    "Top",
    "Tried",
    "TurnReport",
    "WindowReport",
]

PENDING_SHOWN = 20
TURNS_SHOWN = 10
STUCK_MS = 30_000
"""A thread that should have moved so long ago is called stuck: recovery by itself takes 15 s at most."""
TOP_SINCE_MS = 60_000


@dataclass(frozen=True)
class ThreadView:
    """A thread with what is in it: its pending messages and its latest turns and intents, as far as they are shown."""

    thread: ThreadReport
    why: Why
    messages: list[MessageReport]
    turns: list[TurnReport]
    intents: list[IntentReport]


@dataclass(frozen=True)
class Stuck:
    """A thread that should have moved stuck_ms ago, and why it did not."""

    thread: ThreadReport
    why: Why
    stuck_ms: int


@dataclass(frozen=True)
class Top:
    """What happens now.  at: ms of the database's clock.  The loads' ended turns are those of the last minute."""

    at: int
    loads: list[Load]
    running: list[ThreadReport]
    stuck: list[Stuck]


@dataclass(frozen=True)
class WindowReport:
    """An agent's window in force, and what it stands on."""

    agent: str
    window_ms: int
    longest_ms: int
    runs: int
    days: list[Day]


@dataclass(frozen=True)
class Freed:
    """What became of an attempt to free a turn, and the thread as it is after it."""

    receipt: Receipt
    thread: ThreadReport | None


class _Tried(Exception):
    """Ends a trial: its transaction is rolled back."""

    def __init__(self, freed: Freed) -> None:
        self.freed = freed


class Console:
    """Over one executor."""

    def __init__(self, executor: Executor, limits: Limits | None = None) -> None:
        self._executor, self._limits = executor, limits or Limits()

    # -- threads -----------------------------------------------------------------------------------------------------
    def threads(
        self, scope: Scope, page: Page, *, status: str | None = None, agent: str | None = None
    ) -> list[ThreadReport]:
        """A page of threads by key."""
        return self._executor.read("threads", lambda c: report.list_threads(c, scope, page, status=status, agent=agent))

    def stuck(self, scope: Scope, older_ms: int, limit: int, *, agent: str | None = None) -> list[Stuck]:
        """Threads that should have moved at least older_ms ago, longest first."""

        return self._executor.snapshot("stuck", lambda c: self._stuck(c, scope, older_ms, limit, agent))

    def _stuck(self, conn: Connection, scope: Scope, older_ms: int, limit: int, agent: str | None) -> list[Stuck]:
        found = report.list_stuck(conn, scope, older_ms, limit, agent=agent)
        told = zip(found, self._why(conn, found), strict=True)
        return [Stuck(thread, why, thread.now - report.stuck_since(thread)) for thread, why in told]

    def why(self, key: Key) -> tuple[ThreadReport, Why] | None:
        """Why the thread is as it is; None: there is no such thread."""

        def op(conn: Connection) -> tuple[ThreadReport, Why] | None:
            thread = report.read_thread(conn, key)
            return None if thread is None else (thread, self._why(conn, [thread])[0])

        return self._executor.snapshot("why", op)

    def thread(self, key: Key, *, payloads: bool) -> ThreadView | None:
        """The thread with what is in it; None: there is no such thread."""
        scope = Scope(key.tenant, key.thread)

        def op(conn: Connection) -> ThreadView | None:
            thread = report.read_thread(conn, key)
            if thread is None:
                return None
            return ThreadView(
                thread,
                self._why(conn, [thread])[0],
                contents.list_inbox(conn, scope, PENDING_SHOWN, payloads=payloads),
                contents.list_turns(conn, scope, 0, TURNS_SHOWN, state=None, payloads=payloads),
                contents.list_intents(conn, scope, TURNS_SHOWN, state=None, payloads=payloads),
            )

        return self._executor.snapshot("thread", op)

    def _why(self, conn: Connection, listed: Sequence[ThreadReport]) -> list[Why]:
        around = report.read_surroundings(conn, listed)
        return [explain(thread, of_it, self._limits) for thread, of_it in zip(listed, around, strict=True)]

    def free(self, key: Key, turn: int, *, force: bool, actor: str | None, reason: str, dry_run: bool = False) -> Freed:
        """Frees the named turn as Chatlock.free does, and tells the thread.  dry_run: does it and rolls it back."""
        what, spread = act("free", actor, reason), jitter()

        def op(conn: Connection) -> Freed:
            receipt = free(conn, key, turn, what, force=force, limits=self._limits, jitter=spread)
            freed = Freed(receipt, report.read_thread(conn, key))
            if dry_run:
                raise _Tried(freed)
            return freed

        try:
            return self._executor.transaction("free", op)
        except _Tried as tried:
            return tried.freed

    # -- the whole ---------------------------------------------------------------------------------------------------
    def loads(self, scope: Scope, since_ms: int) -> list[Load]:
        """What runs and waits, and what ended in the last since_ms, by tenant and agent, the busiest first."""
        return self._executor.snapshot("loads", lambda c: load.read_loads(c, scope, since_ms))

    def top(self, scope: Scope, limit: int) -> Top:
        """What happens now: the loads, the oldest turns that run, and what is stuck."""

        def op(conn: Connection) -> Top:
            loads = load.read_loads(conn, scope, TOP_SINCE_MS)
            running = report.list_oldest_running(conn, scope, limit)
            return Top(load.read_clock(conn), loads, running, self._stuck(conn, scope, STUCK_MS, limit, None))

        return self._executor.snapshot("top", op)

    def verify(self, tenant: str | None, since_ms: int | None, progress: Callable[[int, int], object]) -> Verified:
        """Checks every invariant in one read-only snapshot.  since_ms: only of threads that moved so lately."""
        return self._executor.snapshot("verify", lambda c: verify.verify(c, tenant, since_ms, progress))

    def windows(self, agent: str | None) -> list[WindowReport]:
        """The window in force of each agent that has history, with the days that it stands on."""
        days = self._executor.read("windows", lambda c: runs.list_days(c, agent, self._limits.window_days))
        by_agent: dict[str, list[Day]] = {}
        for day in days:
            by_agent.setdefault(day.agent, []).append(day)
        return [self._window(name, of_agent) for name, of_agent in by_agent.items()]

    def _window(self, agent: str, days: list[Day]) -> WindowReport:
        longest_ms, count = max(day.longest_ms for day in days), sum(day.runs for day in days)
        return WindowReport(agent, self._limits.window_ms(longest_ms, count), longest_ms, count, days)

    def backtest(self, agent: str | None, since_ms: int, margins: Sequence[int]) -> list[Tried]:
        """What each margin would have done to the runs that ended in the last since_ms."""
        recorded = self._executor.read("runs", lambda c: runs.list_runs(c, agent, since_ms))
        return backtest(recorded, margins, self._limits)

    def judged_runs(self, agent: str, since_ms: int) -> list[Judged]:
        """The agent's runs of the last since_ms, each with the window that those before it had set."""
        recorded = self._executor.read("runs", lambda c: runs.list_runs(c, agent, since_ms))
        return judged(recorded, self._limits)

    def arrivals(self, scope: Scope, since_ms: int) -> list[Arrival]:
        """What was received in the last since_ms in threads where a turn ended since, for `replay`."""
        found = self._executor.read("arrivals", lambda c: arrivals.list_received(c, scope, since_ms))
        return [Arrival((r.tenant, r.thread_id, str(r.incarnation)), r.received_at, r.run_ms) for r in found]

    # -- what is in threads ------------------------------------------------------------------------------------------
    def inbox(self, scope: Scope, limit: int, *, payloads: bool = False) -> list[MessageReport]:
        """Pending messages, by thread and seq."""
        return self._executor.read("inbox", lambda c: contents.list_inbox(c, scope, limit, payloads=payloads))

    def dead(self, scope: Scope, since_ms: int, limit: int, *, payloads: bool = False) -> list[MessageReport]:
        """Messages given up in the last since_ms, the latest first."""
        return self._executor.read("dead", lambda c: contents.list_dead(c, scope, since_ms, limit, payloads=payloads))

    def attempts(self, message: MessageReport, *, payloads: bool = False) -> list[TurnReport]:
        """The turns whose oldest message it was, in order."""
        return self._executor.read("attempts", lambda c: contents.list_attempts(c, message, payloads=payloads))

    def purge_dead(self, scope: Scope, older_ms: int, limit: int) -> int:
        """Forgets the payloads of up to `limit` messages given up more than older_ms ago; returns how many."""
        found = self._executor.read("old_dead", lambda c: forget.old_dead(c, scope, older_ms, limit))
        for dead in found:
            self._forget(dead)
        return len(found)

    def _forget(self, dead: forget.DeadPayload) -> None:
        self._executor.transaction("forget", lambda c: forget.forget_payload(c, dead))

    def message(self, key: Key, message_id: str, *, payloads: bool = False) -> MessageReport | None:
        """One message; None: the tenant's thread has none with this id."""
        return self._executor.read("message", lambda c: contents.read_message(c, key, message_id, payloads=payloads))

    def turns(
        self, scope: Scope, since_ms: int, limit: int, *, state: str | None = None, payloads: bool = False
    ) -> list[TurnReport]:
        """Turns that ended in the last since_ms, or all of one thread, the latest first."""
        return self._executor.read(
            "turns", lambda c: contents.list_turns(c, scope, since_ms, limit, state=state, payloads=payloads)
        )

    def intents(
        self, scope: Scope, limit: int, *, state: str | None = None, payloads: bool = False
    ) -> list[IntentReport]:
        """Intents, the latest first."""
        return self._executor.read(
            "intents", lambda c: contents.list_intents(c, scope, limit, state=state, payloads=payloads)
        )

    def intent(self, key: Key, turn: int, name: str, *, payloads: bool = False) -> IntentReport | None:
        """One intent, by its turn and name."""
        return self._executor.read("intent", lambda c: contents.read_intent(c, key, turn, name, payloads=payloads))

    def retry_intent(self, key: Key, turn: int, name: str, *, actor: str | None, reason: str) -> Receipt:
        """Puts a failed intent back into service, with an audit row.  Any other intent is refused."""
        what = act("retry_intent", actor, reason)
        return self._executor.transaction("retry_intent", lambda c: _retry_intent(c, key, turn, name, what))

    def audit(self, scope: Scope, since_ms: int, limit: int) -> list[AuditReport]:
        """Acts of the last since_ms, the latest first."""
        return self._executor.read("audit", lambda c: contents.list_audit(c, scope, since_ms, limit))


def _retry_intent(conn: Connection, key: Key, turn: int, name: str, what: Act) -> Receipt:
    row = lock(conn, key)
    found = contents.read_intent(conn, key, turn, name, payloads=False)
    if row is None or found is None:
        return Receipt(False, "not_found", "absent")
    if not send_again(conn, IntentId(key, found.incarnation, turn, name, 0)):
        return Receipt(False, "not_failed", found.state)
    write_audit(conn, key, row, what)
    return Receipt(True, "retried", "pending")
