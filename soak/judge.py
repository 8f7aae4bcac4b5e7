"""Judges what all processes noted, in linear time and bounded memory: some threads' lines together, then others'.

A directory holds one history and one log of the agent for each life of a process, and one of each for the end.  A line
of a log is a reply that the agent gave, a row of the application's own tables, or a flaw.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chatlock.testing import History, check
from chatlock.testing.facts import ACCEPTED

PARTS = 64
PROMISES = {
    "lost": ("stored_once", "nothing_left", "submits_in_order", "verify"),
    "answered twice": ("answered_once", "ranges_tile", "application_agrees", "replies_were_given"),
    "stale writes accepted": ("fenced_after_reclaim", "tokens_rise", "effects_in_order"),
    "dishonest outcomes": (
        *("outcome_was_true", "replies_agree", "answered_was_received", "dead_was_tried"),
        *("held_until_answered", "stop_was_kept"),
    ),
    "other faults": ("process",),
}
"""What a run is about, and by which checks each is counted."""
OWN_CHECKS = {
    "replies_were_given": "every reply in the tables is one that the agent gave, to all the messages that it answers",
    "application_agrees": "what the application wrote in a turn's last transaction is there exactly if it is done",
    "effects_in_order": "effects under a fence come in the order of their tokens",
    "verify": "every invariant of the tables holds",
    "process": "no process met an error that chatlock does not promise",
}

Line = dict[str, Any]
TurnId = tuple[str, int]


@dataclass
class Judged:
    """What a run came to."""

    breaches: dict[str, list[str]] = field(default_factory=dict)
    events: int = 0
    acknowledged: int = 0
    told: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    turns: Counter[str] = field(default_factory=Counter)

    def breach(self, check: str, text: str) -> None:
        """Notes one breach of a check."""
        self.breaches.setdefault(check, []).append(text)

    def by_promise(self) -> dict[str, int]:
        """How often each promise was broken."""
        return {
            promise: sum(len(self.breaches.get(check, [])) for check in checks) for promise, checks in PROMISES.items()
        }


def judge(directory: Path, attempts_max: int) -> Judged:
    """Every breach in what one run has noted."""
    judged = Judged()
    for part in _parted(directory, judged):
        events: list[Line] = []
        logs: dict[str, list[Line]] = defaultdict(list)
        for line in map(json.loads, _whole_lines(part)):
            if "event" in line:
                events.append(line)
            else:
                logs[line["log"]].append(line)
        part.unlink()
        events.sort(key=lambda event: event["at"])
        for breach in check(History(events), attempts_max=attempts_max):
            judged.breach(breach.invariant, f"{breach.thread}: {breach.text}")
        _count(judged, events)
        _judge_replies(judged, events, logs)
        _judge_effects(judged, logs["effect"])
    return judged


def _whole_lines(path: Path) -> Iterator[str]:
    """A process that was killed may leave its last line half written."""
    with path.open() as lines:
        yield from (line for line in lines if line.endswith("\n"))


def _parted(directory: Path, judged: Judged) -> list[Path]:
    """Files that each hold all lines of some threads."""
    paths = [directory / f"part{number}" for number in range(PARTS)]
    with ExitStack() as stack:
        parts = [stack.enter_context(path.open("w")) for path in paths]
        for path in sorted(directory.glob("*.jsonl")):
            for text in _whole_lines(path):
                line = json.loads(text)
                if "flaw" in line:
                    judged.breach(line["check"], line["flaw"])
                elif line.get("event") == "drained":
                    for part in parts:
                        part.write(text)
                else:
                    parts[zlib.crc32(line["thread"].encode()) % PARTS].write(text)
    return paths


def _count(judged: Judged, events: list[Line]) -> None:
    accepted: set[tuple[str, str]] = set()
    for event in events:
        match event["event"]:
            case "told":
                judged.told[event["outcome"]] += 1
                if event["outcome"] in ACCEPTED:
                    accepted.add((event["thread"], event["message_id"]))
            case "message":
                judged.messages[event["disposition"]] += 1
            case "turn":
                judged.turns[event["state"]] += 1
    judged.events += len(events)
    judged.acknowledged += len(accepted)


def _judge_replies(judged: Judged, events: list[Line], logs: dict[str, list[Line]]) -> None:
    """The agent's own log and the application's own table beside chatlock's tables."""
    done: dict[TurnId, Line] = {}
    answered: dict[TurnId, set[int]] = defaultdict(set)
    for event in events:
        if event["event"] == "turn" and event["state"] == "done":
            done[event["thread"], event["token"]] = event["reply"]
        elif event["event"] == "message" and event["disposition"] == "answered":
            answered[event["thread"], event["turn"]].add(event["seq"])
    given = {(line["thread"], line["token"], line["nonce"]): set(line["seqs"]) for line in logs["given"]}
    for (thread, token), reply in done.items():
        seqs = given.get((thread, token, reply["nonce"]))
        if seqs is None:
            judged.breach("replies_were_given", f"{thread}: the agent never gave the reply of turn {token}")
        elif not answered[thread, token] <= seqs:
            judged.breach("replies_were_given", f"{thread}: turn {token} answered more than its reply was given to")
    written: Counter[TurnId] = Counter()
    for line in logs["reply"]:
        turn = (line["thread"], line["token"])
        written[turn] += 1
        if turn not in done or done[turn]["nonce"] != line["nonce"]:
            judged.breach("application_agrees", f"{turn[0]}: the application has a reply that turn {turn[1]} has not")
    for turn, reply in done.items():
        if written[turn] != (reply["way"] == "conn"):
            judged.breach("application_agrees", f"{turn[0]}: turn {turn[1]} is written {written[turn]} times")


def _judge_effects(judged: Judged, effects: list[Line]) -> None:
    highest: dict[str, int] = {}
    for line in sorted(effects, key=lambda line: int(line["id"])):
        thread, token = line["thread"], line["token"]
        if token < highest.get(thread, 0):
            judged.breach("effects_in_order", f"{thread}: an effect of turn {token} came after {highest[thread]}")
        highest[thread] = max(token, highest.get(thread, 0))
