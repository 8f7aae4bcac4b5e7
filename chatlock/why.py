"""Why a thread is as it is, told from what was read of it: a pure function, and the only judge of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from chatlock.charging import starts_at
from chatlock.ops.report import Surroundings, ThreadReport
from chatlock.protocol import Limits, Status, held
from chatlock.wording import counted, span

OVERDUE_MS = 10_000
"""A sweep comes every second: a thread that has been due for so long is taken by no one."""

POLLER_UNSEEN_MS = 180_000
"""A poller leaves its mark every minute: so long after the last one there is none."""


class Cause(StrEnum):
    """Why a thread is as it is: the one word that `chatlock why` answers with."""

    NOTHING_PENDING = "nothing pending"
    ALIVE = "holder alive"
    SILENT = "holder silent"
    HUNG = "holder hung"
    DEAD = "holder dead"
    DUE = "due now"
    DELAYED = "head delayed"
    CAP = "cap"
    NO_WORKER = "no worker"
    NO_POLLER = "no poller"
    AWAITING = "awaiting"
    PARKED = "parked"
    DELETED = "deleted"


@dataclass(frozen=True)
class Why:
    """The cause, what is behind it, and how and within what time it ends by itself (None: it does not).

    command: the words of the chatlock command for now; names_thread: the thread is its last one.
    """

    cause: Cause
    text: str
    command: tuple[str, ...]
    frees_by: str | None = None
    frees_in_ms: int | None = None
    names_thread: bool = True

    @property
    def ends_live(self) -> bool:
        """Whether the command would end a turn that lives."""
        return "--force" in self.command


def explain(thread: ThreadReport, around: Surroundings, limits: Limits) -> Why:
    """The cause of the thread's present state."""
    if thread.status == Status.RUNNING:
        return _running(thread, around, limits)
    if thread.status == Status.PARKED:
        by = "after too many stalls" if around.parked_by is None else "by {}: {}".format(*around.parked_by)
        return Why(Cause.PARKED, f"{by}; {_messages(thread)}", ("threads", "resume", "--reason", "WHY"))
    if thread.status == Status.DELETED:
        return Why(Cause.DELETED, "its tombstone keeps the token", ("audit",))
    if held(thread.awaiting, thread.awaiting_rule) or (thread.awaiting is not None and not thread.pending):
        text = f"question {thread.awaiting} is open; {_messages(thread)}"
        decide = ("answer", "--question", thread.awaiting or "", "--decision", "TEXT")
        return Why(Cause.AWAITING, text, decide, "when the question is answered")
    if not thread.pending:
        last = f"its last turn ended {around.ended}" if around.ended else "no turn has run yet"
        return Why(Cause.NOTHING_PENDING, f"every message is resolved; {last}", ("turns", "ls"))
    return _waiting(thread, around, limits)


def _running(thread: ThreadReport, around: Surroundings, limits: Limits) -> Why:
    now, expires_at, ends_at = thread.now, thread.expires_at or 0, thread.window_ends_at or 0
    claimed_at, lease_ms = thread.claimed_at or 0, thread.lease_ms or 0
    turn = f"turn {thread.token} of {thread.owner or 'an unknown owner'}, claimed {_ago(now - claimed_at)}"
    beats = claimed_at + lease_ms < ends_at  # without a heartbeat the lease is the window
    at_window = beats and thread.beat > 0 and expires_at >= ends_at
    if expires_at < now:
        return _stale(thread, around, limits, f"{turn}; its {'window' if at_window else 'lease'} passed", at_window)
    free = ("threads", "free", "--turn", str(thread.token), "--force", "--reason", "WHY")
    look = ("threads", "show")  # it goes on by itself
    left_ms = ends_at - now + 2 * limits.sweep_ms
    silent_ms = now - (expires_at - lease_ms)
    if beats and not at_window and silent_ms > 2 * limits.beat_ms:
        text = f"{turn}; its last heartbeat was {_ago(silent_ms)}"
        return Why(Cause.SILENT, text, look, "when its lease passes", expires_at - now + 2 * limits.sweep_ms)
    if at_window or 2 * (now - claimed_at) > ends_at - claimed_at:
        text = f"{turn}; it has run for over half of its window of {span(ends_at - claimed_at)}"
        return Why(Cause.HUNG, text, free, "when its window ends", left_ms)
    text = f"{turn}; its last heartbeat was {_ago(silent_ms)}" if beats else f"{turn}, without a heartbeat"
    return Why(Cause.ALIVE, text, look, "when its turn ends, or its window", left_ms)


def _stale(thread: ThreadReport, around: Surroundings, limits: Limits, what: str, at_window: bool) -> Why:
    passed_ms = thread.now - (thread.expires_at or 0)
    what = f"{what} {_ago(passed_ms)}"
    if passed_ms > OVERDUE_MS and _unseen(thread, around):
        return _no_poller(thread, around, what)
    free = ("threads", "free", "--turn", str(thread.token), "--reason", "WHY")
    # a sweeper must see the same beat twice, two beats and a second apart
    within_ms = 2 * limits.beat_ms + 1_000 + 2 * limits.sweep_ms
    if not _unseen(thread, around):
        what = f"{what}; a poller left its mark {_ago(thread.now - around.service.swept_at)}"
    stale = Why(Cause.HUNG if at_window else Cause.DEAD, what, free, "by a sweep", within_ms)
    return _if_swept(stale, thread, around)


def _waiting(thread: ThreadReport, around: Surroundings, limits: Limits) -> Why:
    now = thread.now
    start = starts_at(thread.not_before, thread.quiet_until, now, limits.backoff_max_ms)
    if start > now:
        text = _delay(thread, around, limits)
        within_ms = start - now + limits.sweep_ms
        return _if_swept(Why(Cause.DELAYED, text, ("threads", "show"), "by its next turn", within_ms), thread, around)
    overdue_ms = now - max(thread.due_at if thread.due_at is not None else now, start)
    if overdue_ms <= OVERDUE_MS:
        text = f"{_messages(thread)}{_tried(thread, limits)}"
        due = _elsewhere(Cause.DUE, text, "top", "by the next sweep", 2 * limits.sweep_ms)
        return _if_swept(due, thread, around)
    waits = f"{_messages(thread)}, due for {span(overdue_ms)}{_tried(thread, limits)}"
    if _unseen(thread, around):
        return _no_poller(thread, around, waits)
    if around.running_of_agent:
        of_agent = f"of agent {thread.agent}"
        running = counted(around.running_of_agent, f"turn {of_agent} runs", f"turns {of_agent} run")
        text = f"{waits}; {running}, {around.running_of_tenant} of its tenant, and no slot took this one"
        return _elsewhere(Cause.CAP, text, "top", "when one of them ends")
    if thread.dispatched_until:
        none_runs = f"none claimed it: nothing runs turns of agent {thread.agent}{_or_limit(thread, around)}"
        text = f"{waits}; it was handed to a worker, and {none_runs}"
        return _elsewhere(Cause.NO_WORKER, text, "worker")
    no_handler = f"no process has a handler of agent {thread.agent}: start the application{_or_limit(thread, around)}"
    text = f"{waits}; a poller sweeps, but {no_handler}"
    return _elsewhere(Cause.NO_WORKER, text, "doctor")


def _or_limit(thread: ThreadReport, around: Surroundings) -> str:
    """No table tells a poller's limits: what they leave waiting looks like what nothing serves."""
    until, of_tenant = thread.dispatched_until or 0, around.running_of_tenant
    reached = []
    if until == 0 and around.running:
        reached = [f"{counted(around.running, 'turn runs', 'turns run')} (turns_max)"]
    if of_tenant and until <= thread.now:
        of_its = counted(of_tenant, "turn of its tenant runs", "turns of its tenant run")
        reached.append(f"{f'{of_tenant} of its tenant' if reached else of_its} (tenant_turns_max)")
    return f"; or a limit is reached: {', '.join(reached)}" if reached else ""


def _elsewhere(cause: Cause, text: str, command: str, frees_by: str | None = None, in_ms: int | None = None) -> Why:
    """A cause that lies outside the thread."""
    words = (command, "--all-tenants") if command == "top" else (command,)
    return Why(cause, text, words, frees_by, in_ms, names_thread=False)


def _no_poller(thread: ThreadReport, around: Surroundings, what: str) -> Why:
    text = f"{what}; {_unswept(thread, around)}: start the application, or a poller beside it"
    return _elsewhere(Cause.NO_POLLER, text, "poller")


def _if_swept(why: Why, thread: ThreadReport, around: Surroundings) -> Why:
    """The same, but it ends by itself only if somebody sweeps: nobody may, and then no time can be told."""
    if not _unseen(thread, around):
        return why
    text, frees_by = (
        f"{why.text}; {_unswept(thread, around)}",
        f"{why.frees_by}, once a poller or a client with one runs",
    )
    return replace(why, text=text, frees_by=frees_by, frees_in_ms=None)


def _unswept(thread: ThreadReport, around: Surroundings) -> str:
    since = f"for {span(thread.now - around.service.swept_at)}" if around.service.swept_at else "yet"
    return f"no poller has swept {since}"


def _delay(thread: ThreadReport, around: Surroundings, limits: Limits) -> str:
    if thread.not_before <= thread.now:
        return f"{_messages(thread)} until the quiet time after them ends"
    error = f" ({around.error})" if around.error else ""
    return f"its last turn ended {around.ended or 'unanswered'}{error}; {_used(thread, limits)}"


def _unseen(thread: ThreadReport, around: Surroundings) -> bool:
    return thread.now - around.service.swept_at > POLLER_UNSEEN_MS


def _messages(thread: ThreadReport) -> str:
    return counted(thread.pending, "message waits", "messages wait")


def _tried(thread: ThreadReport, limits: Limits) -> str:
    """What went wrong before, where something did."""
    return f"; {_used(thread, limits)}" if thread.attempts or thread.stalls else ""


def _used(thread: ThreadReport, limits: Limits) -> str:
    return f"used attempts: {thread.attempts} of {limits.attempts_max}, stalls: {thread.stalls} of {limits.stalls_max}"


def _ago(ms: int) -> str:
    return f"{span(ms)} ago"
