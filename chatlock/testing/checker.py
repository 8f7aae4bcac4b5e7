"""Judges a history in time linear in its length: is it one that chatlock promises?"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from chatlock.inputs import Key
from chatlock.ops.verify import Breach
from chatlock.protocol import Disposition, Status, TurnState
from chatlock.testing.history import Event, History

RESOLVING = (TurnState.DONE, TurnState.GAVE_UP)
CHARGED = (TurnState.FAILED, TurnState.RECLAIMED, TurnState.GAVE_UP)
BY_TURN = (Disposition.ANSWERED, Disposition.DEAD)
DISPOSITION_TOLD = {
    "Answered": Disposition.ANSWERED,
    "AlreadyAnswered": Disposition.ANSWERED,
    "Cancelled": Disposition.CANCELLED,
    "Expired": Disposition.EXPIRED,
    "Superseded": Disposition.SUPERSEDED,
    "Dead": Disposition.DEAD,
}
ACCEPTED = (*DISPOSITION_TOLD, "Queued", "Parked")
NOT_STORED = ("Busy", "Gone", "NotFound")

MessageId = tuple[Key, str]
TurnId = tuple[Key, int]


@dataclass
class Facts:
    """What the tables hold at the end, and what is needed of the whole history before it is judged in order."""

    messages: dict[Key, list[Event]] = field(default_factory=lambda: defaultdict(list))
    by_id: dict[MessageId, list[Event]] = field(default_factory=lambda: defaultdict(list))
    turns: dict[TurnId, Event] = field(default_factory=dict)
    turns_of: dict[Key, list[Event]] = field(default_factory=lambda: defaultdict(list))
    threads: dict[Key, Event] = field(default_factory=dict)
    drained: bool = False
    attempts_max: int | None = None

    @classmethod
    def of(cls, events: Iterable[Event], attempts_max: int | None) -> Facts:
        facts = cls(attempts_max=attempts_max)
        for event in events:
            key = Key(event["tenant"], event["thread"])
            match event["event"]:
                case "message":
                    facts.messages[key].append(event)
                    facts.by_id[key, event["message_id"]].append(event)
                case "turn":
                    facts.turns[key, event["token"]] = event
                    facts.turns_of[key].append(event)
                case "thread":
                    facts.threads[key] = event
                case "drained":
                    facts.drained = True
        return facts

    @property
    def noted(self) -> bool:
        """Whether the tables are part of the history at all."""
        return bool(self.threads)


class Check(ABC):
    """One promise.  It sees every event in order, then the end; what it yields is a breach."""

    name: str
    text: str

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @abstractmethod
    def see(self, event: Event, key: Key) -> Iterator[str]:
        """What is wrong with this event, in words."""

    def end(self) -> Iterator[tuple[Key, str]]:
        """What is wrong with the whole."""
        yield from ()


class TokensRise(Check):
    name = "tokens_rise"
    text = "a claim asked for after a turn began has a higher token, and no token begins two turns"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._asked: dict[str, int] = {}
        self._position = 0
        self._highest: dict[Key, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        self._begun: set[TurnId] = set()

    def see(self, event: Event, key: Key) -> Iterator[str]:
        self._position += 1
        if event["event"] == "asked":
            self._asked[event["call"]] = self._position
        if event["event"] != "began":
            return
        token, (positions, highest) = event["token"], self._highest[key]
        if (key, token) in self._begun:
            yield f"two turns began under token {token}"
        self._begun.add((key, token))
        known = bisect_right(positions, self._asked.get(event.get("call", ""), 0))
        if known and token < highest[known - 1]:
            yield f"turn {token} was asked for after turn {highest[known - 1]} had begun"
        if not highest or token > highest[-1]:
            positions.append(self._position)
            highest.append(token)

    def end(self) -> Iterator[tuple[Key, str]]:
        for key, ended in self.facts.turns_of.items():
            by_token = sorted(ended, key=lambda turn: int(turn["token"]))
            thread = self.facts.threads.get(key, by_token[-1])
            for turn, later in zip(by_token, [*by_token[1:], thread], strict=True):
                if (turn["incarnation"], turn["token"]) > (later["incarnation"], later["token"]):
                    yield key, f"turn {turn['token']} is of a later life of its thread than token {later['token']}"


class RangesTile(Check):
    name = "ranges_tile"
    text = "the ranges of turns that resolved messages do not overlap, rise with the token, and leave no gap open"

    def see(self, event: Event, key: Key) -> Iterator[str]:
        yield from ()

    def end(self) -> Iterator[tuple[Key, str]]:
        covering: dict[tuple[Key, int, int], int] = {}
        highest: dict[tuple[Key, int], int] = defaultdict(int)
        for key, ended in self.facts.turns_of.items():
            for turn in ended:
                if turn["state"] not in RESOLVING:
                    continue
                incarnation, start, to = turn["incarnation"], turn["from_seq"], turn["to_seq"]
                if start < highest[key, incarnation]:
                    yield (
                        key,
                        f"turn {turn['token']} resolved from {start + 1}, after one up to {highest[key, incarnation]}",
                    )
                if to <= start:
                    yield key, f"turn {turn['token']} resolved nothing"
                highest[key, incarnation] = max(highest[key, incarnation], to)
                covering |= {(key, incarnation, seq): turn["token"] for seq in range(start + 1, to + 1)}
        for key, rows in self.facts.messages.items():
            for row in rows:
                place = (key, row["incarnation"], row["seq"])
                yield from self._judge(key, row, covering.get(place), highest[key, row["incarnation"]])

    def _judge(self, key: Key, row: Event, turn: int | None, highest: int) -> Iterator[tuple[Key, str]]:
        disposition, seq = row["disposition"], row["seq"]
        if disposition in BY_TURN and turn != row["turn"]:
            yield key, f"message {seq} is {disposition} by turn {row['turn']}, whose range does not hold it"
        if disposition == Disposition.PENDING and seq <= highest:
            yield key, f"message {seq} is pending below a resolved range"


class AnsweredWasReceived(Check):
    name = "answered_was_received"
    text = "a turn answered only messages that it had in hand when it began to finish"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._held: dict[TurnId, set[tuple[int, str]]] = defaultdict(set)
        self._offered: dict[TurnId, set[tuple[int, str]]] = defaultdict(set)

    def see(self, event: Event, key: Key) -> Iterator[str]:
        if event["event"] in ("began", "fetched"):
            self._held[key, event["token"]].update((seq, message_id) for seq, message_id in event["messages"])
        elif event["event"] == "finishing":
            turn = (key, event["token"])
            self._offered[turn].update(held for held in self._held[turn] if held[0] <= event["upto"])
        yield from ()

    def end(self) -> Iterator[tuple[Key, str]]:
        for key, rows in self.facts.messages.items():
            for row in rows:
                if row["disposition"] != Disposition.ANSWERED:
                    continue
                if (row["seq"], row["message_id"]) not in self._offered[key, row["turn"]]:
                    yield key, f"turn {row['turn']} answered message {row['seq']}, which it had not received"


class AnsweredOnce(Check):
    name = "answered_once"
    text = "a message is answered by one turn, and one call is told Answered"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._by: dict[tuple[Key, int, int], int] = {}
        self._finishing: dict[TurnId, Event] = {}
        self._held: dict[TurnId, list[int]] = defaultdict(list)
        self._told: dict[tuple[Key, str, int], str] = {}

    def see(self, event: Event, key: Key) -> Iterator[str]:
        match event["event"]:
            case "began" | "fetched":
                self._held[key, event["token"]] += [seq for seq, _ in event["messages"]]
            case "finishing":
                self._finishing[key, event["token"]] = event
            case "finished":
                yield from self._finished(event, key)
            case "told" if event["outcome"] == "Answered":
                call = self._told.setdefault((key, event["message_id"], event["turn"]), event["call"])
                if call != event["call"]:
                    yield f"two calls are told Answered for {event['message_id']}"

    def _finished(self, event: Event, key: Key) -> Iterator[str]:
        turn = self.facts.turns.get((key, event["token"]))
        finishing = self._finishing.get((key, event["token"]))
        if turn is None or finishing is None:
            return
        for seq in self._held[key, event["token"]]:
            if seq <= finishing["upto"]:
                other = self._by.setdefault((key, turn["incarnation"], seq), event["token"])
                if other != event["token"]:
                    yield f"message {seq} is answered by turn {other} and by turn {event['token']}"

    def end(self) -> Iterator[tuple[Key, str]]:
        answers: dict[MessageId, set[int]] = defaultdict(set)
        for key, message_id, turn in self._told:
            answers[key, message_id].add(turn)
        for (key, message_id), by in answers.items():
            if len(by) > max(1, len(self.facts.by_id[key, message_id])):
                yield key, f"{message_id} is told Answered by the turns {sorted(by)}"


class StoredOnce(Check):
    name = "stored_once"
    text = "every accepted id is stored, once, under the seq that was told; what was refused is not"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._accepted: dict[tuple[Key, str, int], None] = {}
        self._calls: dict[MessageId, set[str]] = defaultdict(set)

    def see(self, event: Event, key: Key) -> Iterator[str]:
        """`_calls`: the submits of an id that have not been refused."""
        if event["event"] == "asked" and event["what"] == "submit":
            self._calls[key, event["message_id"]].add(event["call"])
        elif event["event"] == "told" and (event["outcome"] in ACCEPTED or "seq" in event):
            self._accepted[key, event["message_id"], event["seq"]] = None
        elif event["event"] == "told" and event["outcome"] in NOT_STORED:
            self._calls[key, event["message_id"]].discard(event["call"])
        yield from ()

    def end(self) -> Iterator[tuple[Key, str]]:
        if not self.facts.noted:
            return
        stored: set[tuple[Key, int, int]] = set()
        for key, rows in self.facts.messages.items():
            for row in rows:
                if (key, row["incarnation"], row["seq"]) in stored:
                    yield key, f"two messages have seq {row['seq']}"
                stored.add((key, row["incarnation"], row["seq"]))
        for (key, message_id), rows in self.facts.by_id.items():
            if len({row["incarnation"] for row in rows}) != len(rows):
                yield key, f"{message_id} is stored twice"
        for key, message_id, seq in self._accepted:
            if seq not in [row["seq"] for row in self.facts.by_id[key, message_id]]:
                yield key, f"{message_id} was accepted as {seq}, and is not stored so"
        for (key, message_id), calls in self._calls.items():
            if not calls and self.facts.by_id[key, message_id]:
                yield key, f"{message_id} was refused by every call, and is stored"


class FencedAfterReclaim(Check):
    name = "fenced_after_reclaim"
    text = "once a turn's claim is known to be over, no effect and no finish of that turn is accepted"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._over: dict[TurnId, str] = {}
        self._highest: dict[Key, int] = defaultdict(int)
        self._stale: dict[tuple[Key, int, str], str] = {}
        self._first_finishing: dict[TurnId, str | None] = {}

    def _why_over(self, key: Key, token: int) -> str | None:
        if token < self._highest[key]:
            return f"turn {self._highest[key]} had begun"
        return self._over.get((key, token))

    def see(self, event: Event, key: Key) -> Iterator[str]:
        token = event.get("token", 0)
        match event["event"]:
            case "began":
                self._highest[key] = max(self._highest[key], token)
            case "over":
                self._over[key, token] = f"it was known to be over ({event['why']})"
            case "finished":
                self._over.setdefault((key, token), "it had finished")
            case "finishing":
                self._first_finishing.setdefault((key, token), self._why_over(key, token))
            case "effecting":
                why = self._why_over(key, token)
                if why is not None:
                    self._stale[key, token, event["effect"]] = why
            case "effected" if (key, token, event["effect"]) in self._stale:
                why = self._stale[key, token, event["effect"]]
                yield f"effect {event['effect']} of turn {token} was accepted although {why}"

    def end(self) -> Iterator[tuple[Key, str]]:
        for (key, token), why in self._first_finishing.items():
            turn = self.facts.turns.get((key, token))
            if why is not None and turn is not None and turn["state"] == TurnState.DONE:
                yield key, f"turn {token} finished although {why}"


class OutcomeWasTrue(Check):
    name = "outcome_was_true"
    text = "every outcome was true when it was told"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._asked: dict[str, tuple[int, Event]] = {}
        self._position = 0
        self._deleting: set[Key] = set()
        self._accepted: dict[MessageId, int] = {}
        self._resolved: dict[MessageId, int] = {}
        self._payloads: dict[MessageId, set[str]] = defaultdict(set)
        self._ran: dict[TurnId, str] = {}

    def see(self, event: Event, key: Key) -> Iterator[str]:
        self._position += 1
        match event["event"]:
            case "asked":
                self._asked[event["call"]] = (self._position, event)
                if event["what"] == "delete":
                    self._deleting.add(key)
                elif event["what"] == "submit":
                    self._payloads[key, event["message_id"]].add(json.dumps(event.get("payload"), sort_keys=True))
            case "began" if "call" in event:
                self._ran[key, event["token"]] = event["call"]
            case "told":
                yield from self._told(event, key)

    def _told(self, event: Event, key: Key) -> Iterator[str]:
        message, outcome = (key, event["message_id"]), event["outcome"]
        since = self._asked[event["call"]][0] if event["call"] in self._asked else self._position
        before = self._resolved.get(message)
        if outcome in ("Queued", "Parked") and before is not None and before < since and key not in self._deleting:
            yield f"{event['message_id']} is told {outcome} after it was told resolved"
        if outcome in DISPOSITION_TOLD:
            self._resolved.setdefault(message, self._position)
            yield from self._resolved_so(event, key)
        if outcome in ACCEPTED:
            self._accepted.setdefault(message, self._position)
        elif outcome == "Gone" and key not in self._deleting:
            yield f"{event['message_id']} is told Gone, and nobody deleted its thread"
        elif outcome == "NotFound" and self._accepted.get(message, since) < since and key not in self._deleting:
            yield f"{event['message_id']} is told NotFound after it was accepted"
        elif outcome == "Conflict" and len(self._payloads[message]) < 2:
            yield f"{event['message_id']} is told Conflict, and was sent with one payload only"

    def _resolved_so(self, event: Event, key: Key) -> Iterator[str]:
        if not self.facts.noted:
            return
        wanted, message_id = DISPOSITION_TOLD[event["outcome"]], event["message_id"]
        rows = [row for row in self.facts.by_id[key, message_id] if row["disposition"] == wanted]
        if not rows:
            yield f"{message_id} is told {event['outcome']}, and is not {wanted}"
        if wanted != Disposition.ANSWERED or not rows:
            return
        turn = self.facts.turns.get((key, event["turn"]))
        if event["turn"] not in [row["turn"] for row in rows]:
            yield f"{message_id} is told answered by turn {event['turn']}, and was not"
        elif turn is not None and turn.get("reply", event.get("reply")) != event.get("reply"):
            yield f"{message_id} is told another reply than turn {event['turn']} gave"
        ran = self._ran.get((key, event["turn"]))
        if event["outcome"] == "Answered" and ran is not None and ran != event["call"]:
            yield f"{message_id} is told Answered by a call that did not run turn {event['turn']}"


class RepliesAgree(Check):
    name = "replies_agree"
    text = "everyone is told the reply with which the turn was finished"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._given: dict[TurnId, set[str]] = defaultdict(set)
        self._told: dict[TurnId, str] = {}

    def see(self, event: Event, key: Key) -> Iterator[str]:
        reply = json.dumps(event.get("reply"), sort_keys=True)
        if event["event"] == "finishing":
            self._given[key, event["token"]].add(reply)
        if event["event"] != "told" or event["outcome"] not in ("Answered", "AlreadyAnswered"):
            return
        turn = (key, event["turn"])
        if self._told.setdefault(turn, reply) != reply:
            yield f"two replies of turn {event['turn']} are told"
        if turn in self._given and reply not in self._given[turn]:
            yield f"turn {event['turn']} was not finished with the reply that is told"


class SubmitsInOrder(Check):
    name = "submits_in_order"
    text = "a message first sent after another was accepted stands behind it"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._latest: dict[Key, tuple[int, int]] = {}
        self._after: dict[MessageId, tuple[int, int] | None] = {}

    def _place(self, key: Key, message_id: str) -> tuple[int, int] | None:
        rows = self.facts.by_id.get((key, message_id), [])
        return (rows[0]["incarnation"], rows[0]["seq"]) if len(rows) == 1 else None

    def see(self, event: Event, key: Key) -> Iterator[str]:
        if event["event"] == "asked" and event["what"] == "submit":
            self._after.setdefault((key, event["message_id"]), self._latest.get(key))
        elif event["event"] == "told" and event["outcome"] in ACCEPTED:
            place = self._place(key, event["message_id"])
            if place is not None:
                self._latest[key] = max(self._latest.get(key, place), place)
        yield from ()

    def end(self) -> Iterator[tuple[Key, str]]:
        for (key, message_id), after in self._after.items():
            place = self._place(key, message_id)
            if place is not None and after is not None and place < after:
                yield key, f"{message_id} was sent after message {after[1]} was accepted, and stands at {place[1]}"


class DeadWasTried(Check):
    name = "dead_was_tried"
    text = "a message is dead only after as many charged turns over it as the limit says"

    def see(self, event: Event, key: Key) -> Iterator[str]:
        yield from ()

    def end(self) -> Iterator[tuple[Key, str]]:
        tried: dict[tuple[Key, int, int], int] = defaultdict(int)
        for key, ended in self.facts.turns_of.items():
            for turn in ended:
                if turn["state"] in CHARGED:
                    tried[key, turn["incarnation"], turn["from_seq"] + 1] += 1
        for key, rows in self.facts.messages.items():
            for row in rows:
                times = tried[key, row["incarnation"], row["seq"]]
                if row["disposition"] == Disposition.DEAD and times < (self.facts.attempts_max or 1):
                    yield key, f"message {row['seq']} is dead after {times} tries"


class NothingLeft(Check):
    name = "nothing_left"
    text = "after the drain no message is pending and no turn runs"

    def see(self, event: Event, key: Key) -> Iterator[str]:
        yield from ()

    def end(self) -> Iterator[tuple[Key, str]]:
        if not self.facts.drained:
            return
        for key, rows in self.facts.messages.items():
            for row in rows:
                if row["disposition"] == Disposition.PENDING:
                    yield key, f"message {row['seq']} is pending after the drain"
        for key, thread in self.facts.threads.items():
            if thread["status"] == Status.RUNNING:
                yield key, f"turn {thread['token']} runs after the drain"


CHECKS: tuple[type[Check], ...] = (
    TokensRise,
    RangesTile,
    AnsweredWasReceived,
    AnsweredOnce,
    StoredOnce,
    FencedAfterReclaim,
    OutcomeWasTrue,
    RepliesAgree,
    SubmitsInOrder,
    DeadWasTried,
    NothingLeft,
)


def check(history: History | Sequence[Event], *, attempts_max: int | None = None) -> tuple[Breach, ...]:
    """Every breach in the history, named by its check; none: what was noted is what chatlock promises.

    Checks that need the tables at the end say nothing where `History.tables` did not note them.  attempts_max: the
    limit that the clients were made with, to count a dead message's tries.
    """
    events = history.events if isinstance(history, History) else history
    facts = Facts.of(events, attempts_max)
    checks = [kind(facts) for kind in CHECKS]
    found: list[Breach] = []
    for event in events:
        key = Key(event["tenant"], event["thread"])
        for one in checks:
            found += [_breach(one, key, what) for what in one.see(event, key)]
    for one in checks:
        found += [_breach(one, key, what) for key, what in one.end()]
    return tuple(found)


def _breach(check: Check, key: Key, what: str) -> Breach:
    return Breach(check.name, what, key.tenant, key.thread)
