"""What a history must show of turns: tokens, ranges, what they answered, what they may still do."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from chatlock.inputs import Key
from chatlock.protocol import Disposition, TurnState
from chatlock.testing.facts import (
    BY_TURN,
    CHARGED,
    RESOLVING,
    Check,
    Facts,
    MessageId,
    TurnId,
)
from chatlock.testing.history import Event


class TokensRise(Check):
    name = "tokens_rise"
    text = "claims asked for after a turn began rise in token, no token begins two turns, a reclaim passes one over"

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
                passed_over = turn["token"] + (2 if later is not thread else 1)
                if turn["state"] == TurnState.RECLAIMED and later["token"] < passed_over:
                    yield key, f"turn {turn['token']} was reclaimed, and token {later['token']} came next"


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


class StopWasKept(Check):
    name = "stop_was_kept"
    text = (
        "a stopped turn answers what it has or nothing, what its receipt cancels is cancelled or answered by it, and"
        " nothing else is cancelled unasked"
    )

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._wishes: dict[TurnId, set[str]] = defaultdict(set)
        self._receipts: list[tuple[Key, Event]] = []
        self._finished: set[TurnId] = set()
        self._cancelling: set[MessageId] = set()

    def see(self, event: Event, key: Key) -> Iterator[str]:
        match event["event"]:
            case "asked" if event["what"] == "cancel":
                self._cancelling.add((key, event["message_id"]))
            case "stopping":
                self._wishes[key, event["token"]].add(event["queued"])
            case "stopped":
                self._receipts.append((key, event))
            case "finished":
                self._finished.add((key, event["token"]))
        yield from ()

    def end(self) -> Iterator[tuple[Key, str]]:
        for key, receipt in self._receipts:
            turn = self.facts.turns.get((key, receipt["token"]))
            if turn is not None:
                yield from ((key, what) for what in self._judge(key, receipt, turn))
        emptied = {key for (key, _), wishes in self._wishes.items() if "cancel" in wishes}
        for (key, message_id), rows in self.facts.by_id.items():
            cancelled = any(row["disposition"] == Disposition.CANCELLED for row in rows)
            if cancelled and key not in emptied and (key, message_id) not in self._cancelling:
                yield key, f"{message_id} is cancelled, and nobody asked for it"

    def _judge(self, key: Key, receipt: Event, turn: Event) -> Iterator[str]:
        token, state = turn["token"], turn["state"]
        if (key, token) in self._finished and state != TurnState.DONE:
            yield f"turn {token} was stopped and is {state}, and its finish was accepted"
        if receipt["queued"] != "cancel":
            return
        for message_id in receipt["waiting"]:
            if self._end_of(key, message_id, turn) not in (None, (Disposition.CANCELLED, None)):
                yield f"{message_id} waited behind the stopped turn {token}, and is not cancelled"
        if state == TurnState.RUNNING or self._wishes[key, token] != {"cancel"}:
            return  # whoever asks again says anew what becomes of what the turn has
        for message_id in receipt["held"]:
            disposition, by = self._end_of(key, message_id, turn) or (Disposition.CANCELLED, None)
            if disposition == Disposition.PENDING or (disposition == Disposition.ANSWERED and by != token):
                yield f"{message_id} was in the stopped turn {token}, and outlived it"

    def _end_of(self, key: Key, message_id: str, turn: Event) -> tuple[str, int | None] | None:
        """What became of a message in the life of the thread that had the turn; None: it is purged."""
        for row in self.facts.by_id[key, message_id]:
            if row["incarnation"] == turn["incarnation"]:
                return row["disposition"], row.get("turn")
        return None


class HeldUntilAnswered(Check):
    name = "held_until_answered"
    text = 'after a question with awaiting="hold" no turn begins before somebody answers or closes it'

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._closing: set[MessageId] = set()
        self._deleting: set[Key] = set()
        self._open: dict[Key, Event] = {}

    def see(self, event: Event, key: Key) -> Iterator[str]:
        match event["event"]:
            case "asked" if event["what"] == "delete":
                self._deleting.add(key)
            case "asked" if "message_id" in event:
                self._closing.add((key, event["message_id"]))
            case "asking" if event["awaiting"] == "hold":
                self._open[key] = event
            case "began" if key in self._open and key not in self._deleting:
                asking = self._open[key]
                if event["token"] > asking["token"] and (key, asking["question"]) not in self._closing:
                    yield f"turn {event['token']} began while turn {asking['token']} waited for an answer"


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
