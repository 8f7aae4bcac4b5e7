"""THE state machine: states, events, transitions, policies, outcomes, invariants.

Standard library only.  The diagram in docs/state-machine.md and the list of conformance cases are generated from
TRANSITIONS; ops carry the machine out in SQL, and decide by the pure functions of charging.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


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
    """What a caller is told of a message.  A value, never an exception."""

    message_id: str
    """The message's id: the caller's own, or the one that it was given."""
    seq: int | None = None
    """Its position in the thread, counted from 1; None where nothing is stored."""
    incarnation: int | None = field(default=None, compare=False)
    """The life of the thread that seq counts in; deleting a thread and recreating it begins the next."""


@dataclass(frozen=True, kw_only=True)
class Answered(Outcome):
    """This very call ran the turn that answered the message.  The only outcome whose reply is to be shown or sent."""

    reply: Any
    """The turn's reply: any JSON value."""
    turn: int
    """The token of the turn."""
    question: str | None = None
    """The id of the question that the reply asks, for answer(); None: it asks none."""


@dataclass(frozen=True, kw_only=True)
class AlreadyAnswered(Outcome):
    """The turn that fetched the message committed; another caller ran it and has sent this same reply."""

    reply: Any
    """The turn's reply: any JSON value."""
    turn: int
    """The token of the turn."""
    question: str | None = None
    """The id of the question that the reply asks, for answer(); None: it asks none."""


@dataclass(frozen=True, kw_only=True)
class Queued(Outcome):
    """Stored and pending: a turn will take it."""

    position: int
    """How many messages are ahead of it; 0: it is the next, or a turn has it."""
    eta_ms: int | None = field(default=None, compare=False)
    """In how many ms it may be answered, by the mean run of its agent; None: none was counted, or nobody looked."""
    turn: int | None = None
    """The token of the turn that has it now; None: none has."""


@dataclass(frozen=True, kw_only=True)
class Busy(Outcome):
    """Not stored (policy reject): a turn runs or messages are pending."""

    holder: str | None
    """Which process has the claim, for a person to read; None: no turn runs."""
    since_ms: int | None
    """For how many ms it has had the claim; None: no turn runs."""
    live: bool | None = None
    """Whether the claim's lease holds; None: no turn runs."""
    position: int = 0
    """How many messages are ahead."""
    eta_ms: int | None = field(default=None, compare=False)
    """In how many ms they may be answered, by the mean run of the agent; None: none was counted."""


@dataclass(frozen=True, kw_only=True)
class Superseded(Outcome):
    """A newer message took its place, or it was one too many."""

    by: int | None = None
    """The seq of the newer message; None: it was itself the newest of too many."""


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
    """What its last turn failed with: the name of the exception's type, or the text given to Turn.fail."""


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
    """Refused in the thread's present state; nothing was written."""

    reason: str
    """Why, in a word: full, not_idle, not_running, other_turn, not_awaiting, other_question, open_question, no_turn,
    in_turn, answer, not_dead or purged.
    """
    state: str
    """The thread's status; for not_dead and purged the message's disposition."""


@dataclass(frozen=True, kw_only=True)
class Unknown(Outcome):
    """The result of a commit cannot be read back now: ask again with the same message_id."""


TOKENS_PER_EPOCH = 1_000_000
"""More claims than a failover can have lost: a new epoch raises every token by so much."""


@dataclass(frozen=True)
class Limits:
    """Bounds of the protocol.  Give all processes of a database the same.

    Whole numbers; times in milliseconds.  A client refuses a beat_ms that is not below lease_ms, and a backoff_ms or
    window_floor_ms above its maximum, with InvalidInput.
    """

    beat_ms: int = 3_000
    """How often a live turn beats, in ms."""
    lease_ms: int = 10_000
    """How long a turn may be silent before it is stale, in ms."""
    sweep_ms: int = 1_000
    """How often a poller looks for what is due and what is stale, in ms."""
    backoff_ms: int = 1_000
    """How long a thread waits after the first charge, in ms; doubled at each further one, scaled by 0.5 to 1."""
    backoff_max_ms: int = 60_000
    """The longest such wait, in ms."""
    attempts_max: int = 5
    """At so many failed attempts the oldest message is dead."""
    stalls_max: int = 20
    """At so many turns that ended before they had messages in hand the thread is parked."""
    batch_max: int = 100
    """How many messages a turn holds at most."""
    hand_offs_max: int = 20
    """How many turns in a row of one thread a poller or worker runs at most, after the first."""
    mid_fetches_max: int = 20
    """How often a turn fetches anew at most; from then on fetch returns nothing."""
    window_margin: int = 3
    """The window of a turn is so many times the longest observed run of its agent."""
    window_floor_ms: int = 60_000
    """The shortest window, in ms."""
    window_cap_ms: int = 7_200_000
    """The longest window, in ms."""
    window_default_ms: int = 600_000
    """The window of an agent of which too few runs were observed, in ms."""
    window_runs_min: int = 10
    """How many runs must have been observed before they count."""
    window_days: int = 7
    """The runs of so many days count."""

    def window_ms(self, longest_ms: int | None, runs: int) -> int:
        """The window in force, in ms: margin x the longest observed run, within floor and cap.

        Args:
            longest_ms: The longest observed run, in ms; None: none was observed.
            runs: How many were observed.
        """
        if longest_ms is None or runs < self.window_runs_min:
            return self.window_default_ms
        return max(self.window_floor_ms, min(self.window_cap_ms, self.window_margin * longest_ms))
