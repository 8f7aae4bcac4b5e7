"""What one commit may do to a thread: each rule looks at the thread before and after it, and at the operation's name.

Every operation is one transaction, and the simulation looks after each: what a rule sees is that operation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from chatlock.policies import ANSWER, QUIET_MAX_MS, Interrupt
from chatlock.protocol import Disposition, Limits, Status, TurnState
from tests.sim.tables import Message, Thread

CLAIMING = frozenset({"submit_hot", "submit", "claim", "claim_due", "finish"})
ENDING = {
    "finish_hot": {TurnState.DONE},
    "finish": {TurnState.DONE},
    "user": {TurnState.DONE},
    "fail": {TurnState.FAILED, TurnState.GAVE_UP, TurnState.RELEASED},
    "release": {TurnState.RELEASED},
    "reclaim": {TurnState.RECLAIMED, TurnState.GAVE_UP},
    "free": {TurnState.RECLAIMED, TurnState.GAVE_UP, TurnState.RELEASED},
    "force": {TurnState.RELEASED},
    "park": {TurnState.RELEASED},
    "delete": {TurnState.RELEASED},
    "submit": {TurnState.RELEASED},
}
"""How an operation may end the running turn; `user` is a finish in the application's own transaction."""
BY_OTHERS = frozenset({"reclaim", "free", "force", "park", "delete", "submit"})
"""Those that end the turn of someone who may go on."""
RESOLVING = {
    Disposition.ANSWERED: {"finish_hot", "finish", "user"},
    Disposition.DEAD: {"fail", "reclaim", "free"},
    Disposition.SUPERSEDED: {"submit", "edit"},
    Disposition.CANCELLED: {"cancel", "stop", *ENDING} - {"finish_hot", "delete"},
    Disposition.DELETED: {"delete"},
    Disposition.EXPIRED: {*CLAIMING, "fetch"},
}


class Clock(NamedTuple):
    """now: as the operation read it; latest: the latest it ever was; stepped: whether it was ever set."""

    now: int
    latest: int
    stepped: bool


@dataclass(frozen=True)
class Step:
    """One thread before and after a commit.

    owner: the process that made it, as claims name it.  clock: the database's.  received: the turns that a handler
    began with messages in hand.
    """

    op: str
    owner: str | None
    before: Thread
    after: Thread
    clock: Clock
    limits: Limits
    received: Set[int]

    @cached_property
    def same_life(self) -> bool:
        return self.before.row.incarnation == self.after.row.incarnation

    @cached_property
    def ended(self) -> str | None:
        """How the turn that ran before ended; None: it goes on, or none ran."""
        turn = self.after.turns.get(self.before.row.token) if self.before.row.running else None
        return None if turn is None or turn.running else turn.state

    @cached_property
    def goes_on(self) -> bool:
        a, b = self.after.row, self.before.row
        return a.running and b.running and a.token == b.token

    @cached_property
    def began(self) -> bool:
        """A turn began."""
        return self.after.row.running and not self.goes_on

    @cached_property
    def stored(self) -> dict[int, Message]:
        """The messages that are new."""
        before = self.before.messages if self.same_life else {}
        return {seq: message for seq, message in self.after.messages.items() if seq not in before}

    @cached_property
    def resolved(self) -> dict[int, Message]:
        """The messages that were pending, or are new, and are resolved now."""
        before = self.before.messages if self.same_life else {}
        return {
            seq: message
            for seq, message in self.after.messages.items()
            if not message.pending and (seq not in before or before[seq].pending)
        }


def token_rises(s: Step) -> Iterator[str]:
    """A claim, a new life and whoever ends another's turn raise the token; nothing lowers it."""
    a, b = s.after.row, s.before.row
    if (a.incarnation, a.token) < (b.incarnation, b.token):
        yield f"its token fell from {b.token} to {a.token}"
    if not s.same_life and a.token <= b.token + s.began:
        yield f"its new life began with token {a.token}, after {b.token}"
    if s.began and a.token <= b.token and b.status != Status.ABSENT:
        yield f"it was claimed again under token {a.token}"
    if s.ended is not None and s.op in BY_OTHERS and a.token <= b.token + s.began:
        yield f"turn {b.token} was ended by {s.op} and not fenced out"
    if a.status == Status.DELETED != b.status and a.token <= b.token:
        yield f"it was deleted, and its token is still {a.token}"


def turn_is_the_claim(s: Step) -> Iterator[str]:
    """A running thread has one running turn, that of its token; a turn that has ended stays as it is."""
    row = s.after.row
    running = [token for token, turn in s.after.turns.items() if turn.running]
    if running != ([row.token] if row.running else []):
        yield f"it is {row.status} under token {row.token}, and the turns {running} run"
    for token, turn in s.after.turns.items():
        before = s.before.turns.get(token) if s.same_life else None
        if before is not None and not before.running and before != turn:
            yield f"turn {token} was {before} and became {turn}"
        if before is None and token != row.token and row.status != Status.ABSENT:
            yield f"turn {token} began under token {row.token}"


def claim_was_due(s: Step) -> Iterator[str]:
    """A turn begins over pending messages, in its time, and not while a question or an operator keeps it."""
    a, b = s.after.row, s.before.row
    if not s.began:
        return
    if s.op not in CLAIMING:
        yield f"{s.op} began turn {a.token}"
    if b.status in (Status.PARKED, Status.DELETED) and s.same_life:
        yield f"it was claimed while {b.status}"
    if not a.pending or s.after.turns[a.token].from_seq != a.done_seq:
        yield f"turn {a.token} began over nothing, or not where the last one ended"
    if a.beat:
        yield f"turn {a.token} began with {a.beat} beats, which are no proof that it received anything"
    if a.held:
        yield "it was claimed while a question held it"
    for until, far in ((a.not_before, s.limits.backoff_max_ms), (a.quiet_until, QUIET_MAX_MS)):
        if s.clock.now < until <= s.clock.now + far:
            yield f"it was claimed {until - s.clock.now} ms before its time"
    if any(a.charges) and a.fetched_seq > a.done_seq:
        yield "a fetch rode in its claim after a charge: it proves no receipt"


def fetch_is_bounded(s: Step) -> Iterator[str]:
    row = s.after.row
    most = 1 if row.attempts else s.limits.batch_max
    if row.running and row.fetched_seq - row.done_seq > most:
        yield f"turn {row.token} has {row.fetched_seq - row.done_seq} messages, after {row.attempts} attempts"


def running_turn_keeps_its_messages(s: Step) -> Iterator[str]:
    """What a turn has, or is about to have, is resolved only by the end of the turn."""
    a, b = s.after.row, s.before.row
    if not s.goes_on:
        return
    if a.done_seq != b.done_seq or a.fetched_seq < b.fetched_seq:
        yield f"the place of turn {b.token} moved from {b.done_seq}..{b.fetched_seq} to {a.done_seq}..{a.fetched_seq}"
    for seq, message in s.resolved.items():
        if b.done_seq < seq <= b.held_upto:
            yield f"message {seq} of the running turn {b.token} became {message.disposition}"


def message_is_stored_by_its_policy(s: Step) -> Iterator[str]:
    b = s.before.row
    busy = s.same_life and (b.running or b.pending)
    for seq, message in s.stored.items():
        if message.policy == "reject" and busy and s.op != "edit":
            yield f"message {seq} was to be refused while the thread is busy, and is stored"
        if b.status == Status.DELETED and s.same_life:
            yield f"message {seq} was stored in a thread that is deleted"


def edit_takes_the_place_of_one(s: Step) -> Iterator[str]:
    """What an edit stores supersedes one pending message that decides nothing."""
    if s.op == "edit" and (s.stored or s.resolved):
        old = [s.before.messages[seq] for seq in s.resolved if seq in s.before.messages]
        if [message.policy == ANSWER for message in old] != [False] or len(s.stored) != 1:
            yield f"an edit stored {s.stored} in the place of {old}"


def message_is_resolved_by_its_own(s: Step) -> Iterator[str]:
    for seq, message in s.resolved.items():
        if s.op not in RESOLVING.get(Disposition(message.disposition), set()):
            yield f"{s.op} made message {seq} {message.disposition}"
    if s.same_life:
        for seq, message in s.before.messages.items():
            if not message.pending and s.after.messages.get(seq) != message:
                yield f"message {seq} was {message} and became {s.after.messages.get(seq)}"


def end_resolves_what_it_says(s: Step) -> Iterator[str]:
    """A done turn answers its range and nothing else; one that gives up makes its oldest message dead, and no other."""
    b = s.before.row
    if s.ended is None:
        return
    turn = s.after.turns[b.token]
    if s.ended not in ENDING.get(s.op, set()):
        yield f"{s.op} ended turn {b.token} as {s.ended}"
    upto = {TurnState.DONE: turn.to_seq, TurnState.GAVE_UP: b.done_seq + 1}.get(TurnState(s.ended), b.done_seq)
    by_turn = {seq for seq, message in s.resolved.items() if message.turn is not None}
    due = {seq for seq, message in s.before.messages.items() if message.pending and b.done_seq < seq <= (upto or 0)}
    if by_turn != due:
        yield f"turn {b.token} is {s.ended} up to {upto} and resolved {sorted(by_turn)}, not {sorted(due)}"
    if s.op == "submit":
        taken = {seq for seq, message in s.resolved.items() if message.disposition == Disposition.SUPERSEDED}
        had = {seq for seq, message in s.before.messages.items() if message.pending and seq <= b.fetched_seq}
        if taken != had:
            yield f"the rollback of turn {b.token}, which had {sorted(had)}, superseded {sorted(taken)}"


def turn_is_ended_by_its_own(s: Step) -> Iterator[str]:
    """Only its own process ends a live turn, in its own words; others one that has been silent."""
    b = s.before.row
    if s.ended is None:
        return
    turn = s.after.turns[b.token]
    if s.op not in BY_OTHERS and turn.owner != s.owner:
        yield f"turn {b.token} of {turn.owner} was ended by {s.owner}"
    if not turn.speaks_for(b.token):
        yield f"turn {b.token} was ended with {turn.reply or turn.error}, which is another's"
    alive = not s.clock.stepped and (b.expires_at or 0) >= s.clock.now
    if alive and (s.ended == TurnState.RECLAIMED or s.op == "reclaim"):
        yield f"turn {b.token} was taken from a live holder by {s.op}"


def end_heeds_the_stop(s: Step) -> Iterator[str]:
    """What was asked of a stopped turn comes true as it ends: nothing charged, cancelled up to there, parked."""
    a, b = s.after.row, s.before.row
    if s.op == "force" and s.ended is not None and not (b.stopping and (b.cancel_until or 0) <= s.clock.latest):
        yield f"turn {b.token} was released by force, and had not been asked to stop or had time left"
    if s.ended is None or not b.stopping or s.op == "delete":
        if s.ended is not None and s.op != "delete":
            yield from (f"message {q} was cancelled by a turn's end" for q in _cancelled(s))
        return
    if s.op == "fail" and s.ended != TurnState.RELEASED:
        yield f"the stopped turn {b.token} is {s.ended}"
    asked = (b.cancel_upto or 0) if b.cancel_queued == "cancel" else 0
    yield from (
        f"message {q} came after the stop of turn {b.token} and was cancelled" for q in _cancelled(s) if q > asked
    )
    for seq, message in s.after.messages.items():
        if message.pending and seq <= asked:
            yield f"message {seq} outlived the stop of turn {b.token}, which cancels up to {asked}"
    if b.cancel_queued == "park" and a.status != Status.PARKED:
        yield f"turn {b.token} was to leave its thread parked, and it is {a.status}"


def _cancelled(s: Step) -> list[int]:
    return [seq for seq, message in s.resolved.items() if message.disposition == Disposition.CANCELLED]


def stop_is_of_this_turn(s: Step) -> Iterator[str]:
    a, b = s.after.row, s.before.row
    if a.cancel_token is not None and not (a.stopping and a.cancel_until is not None):
        yield "it keeps a stop of no running turn"
    if s.same_life and a.done_seq > b.done_seq and a.interrupts:
        yield "its new oldest message has interrupts that were another's"
    if a.interrupts > Interrupt().per_head_max:
        yield f"its oldest message was interrupted {a.interrupts} times"


def charge_is_due(s: Step) -> Iterator[str]:
    """A failed or reclaimed turn is charged once, with a backoff; a new oldest message starts afresh; else it stays."""
    a, b = s.after.row, s.before.row
    charged = s.ended in (TurnState.FAILED, TurnState.RECLAIMED)
    resumed = b.status == Status.PARKED and a.status == Status.IDLE
    afresh = not s.same_life or a.done_seq > b.done_seq or s.ended == TurnState.DONE or resumed
    wanted = {(0, 0)} if afresh else _charged(s) if charged else {b.charges}
    if a.charges not in wanted:
        yield f"{a.charges} attempts and stalls are left of {b.charges}, not {wanted}"
    if a.status in (Status.IDLE, Status.RUNNING) and (
        a.attempts >= s.limits.attempts_max or a.stalls >= s.limits.stalls_max
    ):
        yield f"its oldest message goes on after {a.charges} attempts and stalls"
    waits = charged and not afresh and a.stalls < s.limits.stalls_max
    if s.op != "delete" and (afresh or s.ended is not None) and waits != (a.not_before > 0):
        yield f"{a.charges} attempts and stalls, and a backoff until {a.not_before}"


def _charged(s: Step) -> set[tuple[int, int]]:
    """What the ended turn may be charged: an attempt if it surely had messages, a stall if it surely had none."""
    b = s.before.row
    attempt, stall = (b.attempts + 1, b.stalls), (b.attempts, b.stalls + 1)
    if b.fetched_seq == b.done_seq:
        return {stall}
    if s.ended == TurnState.FAILED:
        return {attempt} if b.token in s.received else {attempt, stall}
    return {attempt} if any(b.charges) or s.after.row.beat > 0 else {stall}


def done_seq_is_the_prefix(s: Step) -> Iterator[str]:
    """done_seq ends the resolved messages, and holes counts those above it."""
    a, b = s.after.row, s.before.row
    if s.same_life and (a.done_seq < b.done_seq or a.last_seq < b.last_seq):
        yield f"its place fell from {b.done_seq}/{b.last_seq} to {a.done_seq}/{a.last_seq}"
    if a.status in (Status.DELETED, Status.ABSENT):
        return
    if sorted(s.after.messages) != list(range(1, a.last_seq + 1)):
        yield f"it has the messages {sorted(s.after.messages)} up to {a.last_seq}"
    pending = [seq for seq, message in s.after.messages.items() if message.pending]
    if any(seq <= a.done_seq for seq in pending):
        yield f"of {sorted(pending)} not all are above {a.done_seq}"
    if a.pending and not a.running and a.done_seq + 1 not in pending:
        yield f"message {a.done_seq + 1} is the next one, and is not pending"
    holes = sum(not message.pending for seq, message in s.after.messages.items() if seq > a.done_seq)
    if a.holes != holes:
        yield f"it counts {a.holes} holes, and has {holes}"


def waiting_thread_is_due(s: Step) -> Iterator[str]:
    """Who waits has a due row in time; who is parked, deleted or was just taken has none."""
    row, due_at = s.after.row, s.after.due_at
    if row.waits and (due_at is None or due_at > max(s.clock.latest, row.not_before, row.quiet_until)):
        yield f"it waits, and is due at {due_at}"
    gone = row.status != s.before.row.status and s.op in ("park", "delete")
    if due_at is not None and (gone or (s.op == "claim_due" and s.began)):
        yield f"{s.op} left it due"


def question_is_answered_by_its_own(s: Step) -> Iterator[str]:
    """An open question is closed by its answer, by whoever cancels it or, if it says so, by the next message."""
    a, b = s.after.row, s.before.row
    ids = {message.message_id: message for message in s.stored.values()}
    if b.awaiting is not None and s.same_life and s.op != "delete":
        closes = b.awaiting in ids or (bool(ids) and b.awaiting_rule == "cancel" and s.op != "edit")
        if closes and a.awaiting == b.awaiting:
            yield f"the question {b.awaiting} was closed by {sorted(ids)}, and is open"
        if a.awaiting is None and not closes and s.op != "cancel":
            yield f"{s.op} closed the question {b.awaiting}"
    if a.awaiting in {message.message_id for message in s.after.messages.values()}:
        yield f"the question {a.awaiting} is open, and a message has its id"
    for message_id, message in ids.items():
        if message_id == b.awaiting and message.policy != ANSWER:
            yield f"the question {message_id} was answered by a message of the policy {message.policy}"


RULES: tuple[Callable[[Step], Iterator[str]], ...] = (
    token_rises,
    turn_is_the_claim,
    claim_was_due,
    fetch_is_bounded,
    running_turn_keeps_its_messages,
    message_is_stored_by_its_policy,
    edit_takes_the_place_of_one,
    message_is_resolved_by_its_own,
    end_resolves_what_it_says,
    turn_is_ended_by_its_own,
    end_heeds_the_stop,
    stop_is_of_this_turn,
    charge_is_due,
    done_seq_is_the_prefix,
    waiting_thread_is_due,
    question_is_answered_by_its_own,
)


def wrong(step: Step) -> list[str]:
    """Everything that this commit may not have done to the thread."""
    thread, op = step.after.row.thread, step.op
    return [f"{rule.__name__}: {what} ({thread}, {op})" for rule in RULES for what in rule(step)]
