"""THE state machine: states, events, transitions, policies, outcomes, invariants.

Standard library only.  The diagram in docs/state-machine.md and the list of conformance cases are generated from
TRANSITIONS; ops carry the machine out in SQL, and decide by the pure functions of charging.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple


class Status(StrEnum):
    """A thread's status.  ABSENT is no row; a deleted thread keeps a tombstone row with its token."""

    ABSENT = "absent"
    IDLE = "idle"
    RUNNING = "running"
    PARKED = "parked"
    DELETED = "deleted"


class TurnState(StrEnum):
    """A turn's state; every one but RUNNING is final."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    RELEASED = "released"
    RECLAIMED = "reclaimed"
    GAVE_UP = "gave_up"


class Disposition(StrEnum):
    """A message's disposition; every one but PENDING is final."""

    PENDING = "pending"
    ANSWERED = "answered"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DEAD = "dead"
    DELETED = "deleted"


class Event(StrEnum):
    """What can be asked of a thread.  Each is one database transaction, judged by the rows it returns."""

    SUBMIT = "submit"
    RECREATE = "recreate"
    CLAIM = "claim"
    FETCH = "fetch"
    HEARTBEAT = "heartbeat"
    FENCE = "fence"
    SESSION = "session"
    FINISH = "finish"
    SUSPEND = "suspend"
    HAND_OFF = "hand_off"
    FAIL = "fail"
    RELEASE = "release"
    RECLAIM = "reclaim"
    FREE = "free"
    CANCEL = "cancel"
    ANSWER = "answer"
    EDIT = "edit"
    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"
    STOP = "stop"
    FORCE = "force"
    PROMOTE = "promote"
    PARK = "park"
    RESUME = "resume"
    DELETE = "delete"


class Transition(NamedTuple):
    """One edge: while the guard holds, `event` takes a thread from `source` to `target`, by `op` in chatlock/ops."""

    source: Status
    event: Event
    target: Status
    guard: str
    op: str


_A, _I, _R, _P, _D = Status.ABSENT, Status.IDLE, Status.RUNNING, Status.PARKED, Status.DELETED
_MINE = "incarnation and token are the caller's"
_OPEN = "its question is the one that is open, which this closes: seq = last_seq + 1"

TRANSITIONS: tuple[Transition, ...] = (
    Transition(_A, Event.SUBMIT, _I, "the row is inserted once, whoever comes first", "submit"),
    Transition(_I, Event.SUBMIT, _I, "new message_id: seq = last_seq + 1", "submit"),
    Transition(_R, Event.SUBMIT, _R, "new message_id: seq = last_seq + 1", "submit"),
    Transition(_P, Event.SUBMIT, _P, "new message_id: seq = last_seq + 1", "submit"),
    Transition(_D, Event.RECREATE, _I, "asked for: incarnation + 1, token + 1", "submit"),
    Transition(_I, Event.CLAIM, _R, "token is the one read, last_seq > done_seq, may start now", "claim"),
    Transition(_I, Event.CLAIM, _I, "the same, but every pending message has expired", "claim"),
    Transition(_R, Event.FETCH, _R, _MINE, "fetch"),
    Transition(_R, Event.HEARTBEAT, _R, f"{_MINE}, the window has not passed", "heartbeat"),
    Transition(_R, Event.FENCE, _R, _MINE, "fence"),
    Transition(_R, Event.SESSION, _R, _MINE, "session"),
    Transition(_R, Event.FINISH, _I, f"{_MINE}, done_seq < upto <= fetched_seq", "finish"),
    Transition(_R, Event.SUSPEND, _I, f"{_MINE}, done_seq < upto <= fetched_seq; its question opens", "finish"),
    Transition(_R, Event.FINISH, _P, 'the same, stopped with queued="park"', "finish"),
    Transition(_R, Event.HAND_OFF, _R, f"{_MINE}, messages are left: token + 1, new claim_id", "finish"),
    Transition(_R, Event.FAIL, _I, f"{_MINE}; attempts = max: its oldest message is dead", "fail"),
    Transition(_R, Event.FAIL, _P, f"{_MINE}; stalls = max", "fail"),
    Transition(_R, Event.RELEASE, _I, "claim_id is the caller's; uncharged", "release"),
    Transition(_R, Event.RELEASE, _P, 'the same, stopped with queued="park"', "release"),
    Transition(
        _R, Event.RECLAIM, _I, "expires_at passed, token and beat as observed twice: token + 1, charged", "reclaim"
    ),
    Transition(_R, Event.RECLAIM, _P, "the same, and stalls = max", "reclaim"),
    Transition(_R, Event.FREE, _I, "token is the named one: forced, uncharged, or stale, charged; token + 1", "free"),
    Transition(_R, Event.FREE, _P, "the same, stale, and stalls = max", "free"),
    Transition(_I, Event.CANCEL, _I, "the message is pending", "cancel"),
    Transition(_R, Event.CANCEL, _R, "the message is pending and above greatest(fetched_seq, done_seq + 1)", "cancel"),
    Transition(_P, Event.CANCEL, _P, "the message is pending", "cancel"),
    *(Transition(at, Event.ANSWER, at, _OPEN, "submit") for at in (_I, _R, _P)),
    Transition(_I, Event.EDIT, _I, "the message is pending: superseded by a new one", "edit"),
    Transition(_R, Event.EDIT, _R, "the same, and above greatest(fetched_seq, done_seq + 1)", "edit"),
    Transition(_P, Event.EDIT, _P, "the message is pending: superseded by a new one", "edit"),
    Transition(_R, Event.INTERRUPT, _R, "fewer than K interrupts of its head: cancel_token = token", "submit"),
    Transition(_R, Event.ROLLBACK, _I, "token + 1, released; what it fetched is superseded by the message", "submit"),
    Transition(_R, Event.STOP, _R, "token is the named one: cancel_token = token", "stop"),
    Transition(_R, Event.FORCE, _I, "cancel_token = token, its grace is over: token + 1, uncharged", "stop"),
    Transition(_R, Event.FORCE, _P, 'the same, stopped with queued="park"', "stop"),
    *(Transition(at, Event.PROMOTE, at, "messages are pending", "promote") for at in (_I, _R, _P)),
    Transition(_I, Event.PARK, _P, "always", "park"),
    Transition(_R, Event.PARK, _P, "token is the named one: token + 1, released uncharged", "park"),
    Transition(_P, Event.RESUME, _I, "attempts, stalls and backoff are cleared", "resume"),
    Transition(_I, Event.DELETE, _D, "token + 1; pending messages become deleted", "delete"),
    Transition(_R, Event.DELETE, _D, "token + 1; the turn is released", "delete"),
    Transition(_P, Event.DELETE, _D, "token + 1; pending messages become deleted", "delete"),
)


def targets(source: Status, event: Event) -> frozenset[Status]:
    """Where `event` may take a thread from `source`; empty: refused, and no row changes."""
    return frozenset(t.target for t in TRANSITIONS if (t.source, t.event) == (source, event))


def conformance_cases() -> list[tuple[Status, Event, frozenset[Status]]]:
    """Every (status, event) pair, legal and illegal, with the statuses it may lead to."""
    return [(source, event, targets(source, event)) for source in Status for event in Event]


class Policy(NamedTuple):
    """What a message does when a turn is running or messages are pending; submit applies the row.

    store: whether it is stored, if_free = only where no turn runs and nothing is pending.  pending: what becomes of the
    pending messages that no turn has.  quiet: whether the next turn waits until no more such messages come.  turn:
    what becomes of the running one: tell = its handler is told that there is something to fetch, interrupt = it is
    asked to stop, rollback = it ends and what it fetched is superseded, attach = the caller is told its outcome.
    """

    store: Literal["always", "if_free", "never"]
    pending: Literal["keep", "supersede"]
    text: str
    quiet: bool = False
    turn: Literal["leave", "tell", "interrupt", "rollback", "attach"] = "leave"


POLICIES: dict[str, Policy] = {
    "enqueue": Policy(
        "always", "keep", "stored behind what is pending; a later turn, or the running one by a fetch, takes it"
    ),
    "reject": Policy("if_free", "keep", "refused with Busy and not stored while a turn runs or messages are pending"),
    "latest": Policy("always", "supersede", "stored, and supersedes the pending messages that no turn has fetched"),
    "debounce": Policy("always", "keep", "stored; the next turn waits until no more such messages come", quiet=True),
    "steer": Policy("always", "keep", "stored; the running turn is told that there is something to fetch", turn="tell"),
    "interrupt": Policy("always", "keep", "stored; the running turn is asked to stop", turn="interrupt"),
    "rollback": Policy(
        "always", "keep", "stored; the running turn ends, and what it fetched is superseded", turn="rollback"
    ),
    "attach": Policy(
        "never", "keep", "not stored: its caller waits for the running turn and is told its outcome", turn="attach"
    ),
}
PolicyName = Literal["enqueue", "reject", "latest", "debounce", "steer", "interrupt", "rollback", "attach"]


@dataclass(frozen=True, kw_only=True)
class Debounce:
    """The policy debounce with its own times: a turn starts quiet_ms after the last message, and no later than
    max_wait_ms after the oldest pending one.
    """

    quiet_ms: int = 2_000
    max_wait_ms: int = 10_000


@dataclass(frozen=True, kw_only=True)
class Interrupt:
    """The policy interrupt with its own bounds: a turn that was asked to stop is released by force after grace_ms; over
    the same oldest message at most per_head_max turns are asked.
    """

    grace_ms: int = 10_000
    per_head_max: int = 3


BACKLOGS: dict[str, str] = {
    "keep": "all stays pending: the next turn takes it",
    "cancel": "all that was pending is cancelled: what waits now, what the turn has when it ends without an answer",
    "park": "all stays pending, and the thread is parked when the turn is over",
}
"""What becomes of the messages of a thread whose turn is stopped."""
Backlog = Literal["keep", "cancel", "park"]

PRIORITIES: dict[str, int] = {"user": 0, "resume": 10, "background": 20}
"""The classes of due threads: a lower number goes first, and background after all others."""
PriorityName = Literal["user", "resume", "background"]

OVERFLOWS: dict[str, str] = {
    "reject": 'the new message is Refused("full") and not stored',
    "drop_oldest": "the oldest pending messages that no turn has are superseded by the new one",
    "drop_newest": "the new message is stored as superseded",
}
Overflow = Literal["reject", "drop_oldest", "drop_newest"]

AWAITING_RULES: dict[str, str] = {
    "hold": "they are stored, and no turn begins until the question is closed",
    "run": "they get their turns, and the question stays open",
    "cancel": "the first of them closes the question: a later answer is refused",
}
"""What an open question does to new messages that do not answer it."""
ANSWER = "answer"
"""What messages.policy holds for the answer to a question, which no policy applies to."""
AwaitingRule = Literal["hold", "run", "cancel"]


def held(awaiting: str | None, awaiting_rule: str | None) -> bool:
    """Whether an open question keeps turns from beginning."""
    return awaiting is not None and awaiting_rule == "hold"


INVARIANTS: dict[str, str] = {
    "S": "done_seq <= fetched_seq <= last_seq; running <=> claim_id and expires_at are set <=> one running turn",
    "T": "the token strictly increases over claims, reclaims, deletions and incarnations",
    "R": "each seq <= done_seq is resolved: by exactly one done or gave_up turn, or by a disposition without a turn",
    "H": "unless running, done_seq = last_seq or message done_seq + 1 is pending; holes = resolved above done_seq",
    "D": "an idle thread with last_seq > done_seq has a due row, due_at no later than it may start, unless a question"
    " holds it",
    "A": "a question that is open was asked by a done turn of this incarnation and has no answer; none holds a thread"
    " that runs",
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a caller is told.  A value, never an exception; `seq` is None where nothing is stored.

    incarnation: the life of the thread that seq counts in.
    """

    message_id: str
    seq: int | None = None
    incarnation: int | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class Answered(Outcome):
    """This very call ran the turn that answered the message.  The only outcome whose reply is to be shown or sent.

    question: the id of the question that the reply asks; None: it asks none.
    """

    reply: Any
    turn: int
    question: str | None = None


@dataclass(frozen=True, kw_only=True)
class AlreadyAnswered(Outcome):
    """The turn that fetched the message committed; another caller ran it and has sent this same reply.

    question: as in Answered.
    """

    reply: Any
    turn: int
    question: str | None = None


@dataclass(frozen=True, kw_only=True)
class Queued(Outcome):
    """Stored and pending.  position: messages ahead of it; 0 = being answered now, by `turn`.

    eta_ms: when it may be answered, by the mean run of its agent; None = none was counted, or nobody looked.
    """

    position: int
    eta_ms: int | None = field(default=None, compare=False)
    turn: int | None = None


@dataclass(frozen=True, kw_only=True)
class Busy(Outcome):
    """Not stored (policy reject): a turn runs or messages are pending.  since_ms: age of the claim; live: whether its
    lease holds; position: how many messages are ahead; eta_ms: when they may be answered, None = unknown.
    """

    holder: str | None
    since_ms: int | None
    live: bool | None = None
    position: int = 0
    eta_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class Superseded(Outcome):
    """A newer message took its place; by: its seq.  None: it was the newest of too many."""

    by: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cancelled(Outcome):
    """Resolved on request before a turn fetched it."""


@dataclass(frozen=True, kw_only=True)
class Expired(Outcome):
    """Resolved by its own expire_ms before a turn fetched it."""


@dataclass(frozen=True, kw_only=True)
class Dead(Outcome):
    """Given up after its own attempts; redrive sends it again as a new message."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Parked(Outcome):
    """Stored and pending in a thread that is out of automatic service until someone resumes it."""


@dataclass(frozen=True, kw_only=True)
class Gone(Outcome):
    """The thread was deleted; submit with recreate=True starts its next incarnation."""


@dataclass(frozen=True, kw_only=True)
class NotFound(Outcome):
    """No such message in this tenant's thread."""


@dataclass(frozen=True, kw_only=True)
class Conflict(Outcome):
    """The same message_id is stored with another payload; nothing was written."""


@dataclass(frozen=True, kw_only=True)
class Refused(Outcome):
    """Refused in the thread's present state; nothing was written.  reason: a word; state: the status."""

    reason: str
    state: str


@dataclass(frozen=True, kw_only=True)
class Unknown(Outcome):
    """The result of a commit cannot be read back now: ask again with the same message_id."""


TOKENS_PER_EPOCH = 1_000_000
"""More claims than a failover can have lost: a new epoch raises every token by so much."""


@dataclass(frozen=True)
class Limits:
    """Bounds of the protocol; times in milliseconds of the database clock."""

    beat_ms: int = 3_000
    lease_ms: int = 10_000
    sweep_ms: int = 1_000
    backoff_ms: int = 1_000
    backoff_max_ms: int = 60_000
    attempts_max: int = 5
    stalls_max: int = 20
    batch_max: int = 100
    hand_offs_max: int = 20
    mid_fetches_max: int = 20
    window_margin: int = 3
    window_floor_ms: int = 60_000
    window_cap_ms: int = 7_200_000
    window_default_ms: int = 600_000
    window_runs_min: int = 10
    window_days: int = 7

    def window_ms(self, longest_ms: int | None, runs: int) -> int:
        """The window in force: margin x the longest observed run, within floor and cap; the default before there is
        history.
        """
        if longest_ms is None or runs < self.window_runs_min:
            return self.window_default_ms
        return max(self.window_floor_ms, min(self.window_cap_ms, self.window_margin * longest_ms))
