"""What a history must show of messages: stored once, in order, and what callers were told of them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator

from chatlock.inputs import Key
from chatlock.protocol import Disposition, Status
from chatlock.testing.facts import (
    ACCEPTED,
    DISPOSITION_TOLD,
    NOT_STORED,
    Check,
    Facts,
    MessageId,
    TurnId,
)
from chatlock.testing.history import Event


class StoredOnce(Check):
    name = "stored_once"
    text = "every accepted id is stored, once, with one payload, under the seq that was told; what was refused is not"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._accepted: dict[tuple[Key, str, int], None] = {}
        self._calls: dict[MessageId, set[str]] = defaultdict(set)
        self._asked: dict[str, tuple[str, str]] = {}
        self._payloads: dict[MessageId, str] = {}
        self._deleting: set[Key] = set()

    def see(self, event: Event, key: Key) -> Iterator[str]:
        """`_calls`: the submits of an id that have not been refused."""
        if event["event"] == "asked" and event["what"] == "delete":
            self._deleting.add(key)
        elif event["event"] == "asked" and event["what"] == "submit":
            self._calls[key, event["message_id"]].add(event["call"])
            self._asked[event["call"]] = event["message_id"], json.dumps(event.get("payload"), sort_keys=True)
        elif event["event"] == "told" and (event["outcome"] in ACCEPTED or "seq" in event):
            self._accepted[key, event["message_id"], event["seq"]] = None
            yield from self._accept(event, key)
        elif event["event"] == "told" and event["outcome"] in NOT_STORED:
            self._calls[key, event["message_id"]].discard(event["call"])

    def _accept(self, event: Event, key: Key) -> Iterator[str]:
        """An id may have another payload only in another life of its thread."""
        message_id, payload = self._asked.pop(event["call"], (None, ""))
        if message_id != event["message_id"] or event["outcome"] not in ACCEPTED or key in self._deleting:
            return
        if self._payloads.setdefault((key, event["message_id"]), payload) != payload:
            yield f"{event['message_id']} was accepted with two payloads"

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
            # an attempt whose answer was lost may have stored it before its thread was deleted
            living = [r for r in self.facts.by_id[key, message_id] if r["disposition"] != Disposition.DELETED]
            if not calls and living:
                yield key, f"{message_id} was refused by every call, and is stored"


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
