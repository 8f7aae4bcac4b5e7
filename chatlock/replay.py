"""What a policy would have done: recorded arrivals, played against the rules of policies.POLICIES without a database.

Threads do not compete here: a turn starts as soon as its thread may start it, and takes a known time.  Every message
comes under the same policy.  Handlers are good ones: a turn that is told of a message fetches it at once and still ends
in its time, and one that is asked to stop stops at once.  `attach` stores nothing, so a message that finds no turn to
attach to is enqueued, as its caller would do.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from chatlock.backtest import at_share
from chatlock.errors import InvalidInput
from chatlock.inputs import checked_ms
from chatlock.intake import Chosen, Intake, Named
from chatlock.policies import POLICIES, Policy
from chatlock.protocol import Limits


@dataclass(frozen=True)
class Arrival:
    """A message of `thread` at at_ms.  run_ms: how long a turn takes whose oldest message it is; None: as others."""

    thread: tuple[str, ...]
    at_ms: int
    run_ms: int | None = None


@dataclass(frozen=True)
class Replayed:
    """What became of the messages under one policy.

    answered, superseded, refused (not stored) and attached (not stored, told the outcome of a running turn) sum up to
    messages.  model_calls: one of each turn, and one more for each fetch in mid-turn.  first_reply_*_ms: from a message
    to the reply of the turn that answered it or what took its place; refused ones have none.
    """

    policy: str
    messages: int
    turns: int
    model_calls: int
    answered: int
    superseded: int
    refused: int
    attached: int
    first_reply_p50_ms: int | None
    first_reply_p95_ms: int | None


def read_arrivals(lines: Iterable[str]) -> list[Arrival]:
    """Arrivals from CSV with the columns thread and offset_s, and log where threads of several logs are apart.

    Raises InvalidInput for anything else.
    """
    rows = csv.DictReader(lines, restval="")
    try:
        if not {"thread", "offset_s"} <= set(rows.fieldnames or ()):
            raise InvalidInput("bad_arrivals", "arrivals need the columns thread and offset_s in their first line")
        return [Arrival((row.get("log", ""), row["thread"]), round(float(row["offset_s"]) * 1000)) for row in rows]
    except (ValueError, OverflowError):
        raise InvalidInput("bad_arrivals", f"line {rows.line_num}: offset_s is no number of seconds") from None
    except csv.Error:
        raise InvalidInput("bad_arrivals", f"line {rows.line_num + 1} is no CSV") from None


def replay(
    arrivals: Iterable[Arrival], policy: Named = "enqueue", *, run_ms: int, limits: Limits | None = None
) -> Replayed:
    """Plays the arrivals under `policy`.  run_ms: how long a turn takes where an arrival does not say.

    Deterministic.  Of what happens in one millisecond a turn's end and the next one's start come before an arrival.
    Raises InvalidInput.
    """
    chosen = Intake(policy).policy_for(None)
    rule = _Rule(POLICIES[chosen.policy], chosen, checked_ms(run_ms, "run_ms", least=1), limits or Limits())
    threads: dict[tuple[str, ...], _Thread] = {}
    for arrival in sorted(arrivals, key=lambda arrival: arrival.at_ms):
        threads.setdefault(arrival.thread, _Thread(rule)).receive(arrival)
    for thread in threads.values():
        thread.drain()
    total = sum((thread.counts for thread in threads.values()), Counter[str]())
    waits = sorted(wait for thread in threads.values() for wait in thread.waits())
    return Replayed(
        chosen.policy,
        messages=total["messages"],
        turns=total["turns"],
        model_calls=total["model_calls"],
        answered=total["answered"],
        superseded=total["superseded"],
        refused=total["refused"],
        attached=total["attached"],
        first_reply_p50_ms=at_share(waits, 0.5) if waits else None,
        first_reply_p95_ms=at_share(waits, 0.95) if waits else None,
    )


@dataclass(frozen=True)
class _Rule:
    """What holds for every thread."""

    policy: Policy
    chosen: Chosen
    run_ms: int
    limits: Limits


@dataclass(eq=False)
class _Message:
    """A message that is told a reply: its own, or that of `by`, which took its place."""

    seq: int
    at_ms: int
    run_ms: int
    by: _Message | None = None
    replied_at: int | None = None


@dataclass(eq=False)
class _Turn:
    """A running turn, and what it is to answer."""

    ends_at: int
    held: list[_Message]
    fetched_upto: int
    fetches: int = 0
    attached: list[_Message] = field(default_factory=list)


class _Thread:
    """One thread's life."""

    def __init__(self, rule: _Rule) -> None:
        self._rule = rule
        self._now = self._quiet_until = self._last_seq = 0
        self._pending: list[_Message] = []
        self._turn: _Turn | None = None
        self._interrupts = 0
        self._told: list[_Message] = []
        self.counts = Counter[str]()

    def receive(self, arrival: Arrival) -> None:
        """A message comes; whatever was to happen until then happens first."""
        self._pass_until(arrival.at_ms)
        self._now = arrival.at_ms
        self.counts["messages"] += 1
        policy = self._rule.policy
        if policy.store == "if_free" and (self._turn is not None or self._pending):
            self.counts["refused"] += 1
            return
        message = _Message(self._last_seq + 1, arrival.at_ms, arrival.run_ms or self._rule.run_ms)
        self._told.append(message)
        if policy.store == "never" and self._turn is not None:
            self.counts["attached"] += 1
            self._turn.attached.append(message)
            return
        if policy.turn == "rollback" and self._turn is not None:
            self._supersede(self._turn.held, message)
            self._turn = None
        self._store(message)
        if self._turn is not None:
            self._tell(self._turn)
        self._pass_until(arrival.at_ms)

    def _tell(self, turn: _Turn) -> None:
        """The running turn hears of the message that was stored, and does what it is to do."""
        bounds = self._rule.chosen.interrupt
        if self._rule.policy.turn == "tell" and turn.fetches < self._rule.limits.mid_fetches_max:
            fetched = [message for message in self._pending if message.seq <= turn.fetched_upto]
            self._pending = self._pending[len(fetched) :]
            turn.held += fetched
            turn.fetches += bool(fetched)
            self.counts["model_calls"] += bool(fetched)
        elif bounds is not None and self._interrupts < bounds.per_head_max:
            self._interrupts += 1
            self._pending = turn.held + self._pending
            self._turn = None

    def _store(self, message: _Message) -> None:
        if self._rule.policy.pending == "supersede":
            self._supersede(self._pending, message)
            self._pending = []
        self._last_seq = message.seq
        self._pending.append(message)
        quiet = self._rule.chosen.debounce
        if quiet is not None:
            self._quiet_until = min(message.at_ms + quiet.quiet_ms, self._pending[0].at_ms + quiet.max_wait_ms)

    def _supersede(self, messages: list[_Message], by: _Message) -> None:
        for message in messages:
            message.by = by
        self.counts["superseded"] += len(messages)

    def drain(self) -> None:
        """Everything that is still to happen happens."""
        while (moment := self._next()) is not None:
            self._pass_until(moment)

    def waits(self) -> Iterable[int]:
        """From each message to its reply, once all are drained."""
        for message in reversed(self._told):
            if message.by is not None:
                message.replied_at = message.by.replied_at
            if message.replied_at is not None:
                yield message.replied_at - message.at_ms

    def _next(self) -> int | None:
        if self._turn is not None:
            return self._turn.ends_at
        return max(self._now, self._quiet_until) if self._pending else None

    def _pass_until(self, at_ms: int) -> None:
        while (moment := self._next()) is not None and moment <= at_ms:
            self._now = moment
            if self._turn is None:
                self._start()
            else:
                self._finish(self._turn)

    def _start(self) -> None:
        upto = self._pending[0].seq - 1 + self._rule.limits.batch_max
        held = [message for message in self._pending if message.seq <= upto]
        self._pending = self._pending[len(held) :]
        self._turn = _Turn(self._now + held[0].run_ms, held, upto)
        self.counts["turns"] += 1
        self.counts["model_calls"] += 1

    def _finish(self, turn: _Turn) -> None:
        for message in (*turn.held, *turn.attached):
            message.replied_at = self._now
        self.counts["answered"] += len(turn.held)
        self._interrupts = 0
        self._turn = None
