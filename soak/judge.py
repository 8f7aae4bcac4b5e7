"""Judges what all processes noted, in linear time and bounded memory: some threads' events together, then others'."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chatlock.testing import History, check
from chatlock.testing.checker import CHECKS
from chatlock.testing.facts import ACCEPTED

PARTS = 64
OWN_CHECKS = {
    "replies_were_given": "every reply in the tables is one that the agent gave, to all the messages that it answers",
    "application_agrees": "what the application wrote in a turn's last transaction is there exactly if it is done",
    "effects_in_order": "effects under a fence come in the order of their tokens",
    "verify": "every invariant of the tables holds",
    "process": "no process met an error that chatlock does not promise",
}


@dataclass
class Judged:
    """What a run came to."""

    breaches: dict[str, list[str]] = field(default_factory=dict)
    events: int = 0
    acknowledged: int = 0
    told: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    turns: Counter[str] = field(default_factory=Counter)

    def breach(self, name: str, text: str) -> None:
        self.breaches.setdefault(name, []).append(text)


def judge(directory: Path, replies: list[Any], effects: list[Any], attempts_max: int) -> Judged:
    """Every breach in the files of one run.  replies, effects: the application's rows, in order of their ids."""
    judged = Judged()
    parts = _parted(directory, judged)
    by_part: list[list[tuple[str, int, str]]] = [[] for _ in range(PARTS)]
    for thread, token, nonce in replies:
        by_part[_part(thread)].append((thread, token, nonce))
    for number, path in enumerate(parts):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        given = {(line["thread"], line["token"], line["nonce"]): line["seqs"] for line in lines if "nonce" in line}
        events = sorted((line for line in lines if "event" in line), key=lambda event: event["at"])
        for breach in check(History(events), attempts_max=attempts_max):
            judged.breach(breach.invariant, f"{breach.thread}: {breach.text}")
        _count(judged, events)
        _judge_replies(judged, events, given, by_part[number])
        path.unlink()
    _judge_effects(judged, effects)
    return judged


def _part(thread: str) -> int:
    return zlib.crc32(thread.encode()) % PARTS


def _whole_lines(path: Path) -> Iterator[str]:
    """A process that was killed may leave its last line half written."""
    with path.open() as lines:
        yield from (line for line in lines if line.endswith("\n"))


def _parted(directory: Path, judged: Judged) -> list[Path]:
    paths = [directory / f"part-{number}.jsonl" for number in range(PARTS)]
    with ExitStack() as stack:
        parts = [stack.enter_context(path.open("w")) for path in paths]
        for path in sorted(directory.glob("*-*.jsonl")):
            if path in paths:
                continue
            for text in _whole_lines(path):
                line = json.loads(text)
                if "flaw" in line:
                    judged.breach("process", line["flaw"])
                elif line.get("event") == "drained":
                    for part in parts:
                        part.write(text)
                else:
                    parts[_part(line["thread"])].write(text)
    return paths


def _count(judged: Judged, events: list[dict[str, Any]]) -> None:
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


def _judge_replies(judged: Judged, events: list[dict[str, Any]], given: dict[Any, list[int]], rows: list[Any]) -> None:
    """The agent's own log and the application's own table beside chatlock's tables."""
    done: dict[tuple[str, int], dict[str, Any]] = {}
    for event in events:
        if event["event"] == "turn" and event["state"] == "done":
            done[event["thread"], event["token"]] = event["reply"]
    answered: dict[tuple[str, int], list[int]] = {}
    for event in events:
        if event["event"] == "message" and event["disposition"] == "answered":
            answered.setdefault((event["thread"], event["turn"]), []).append(event["seq"])
    for (thread, token), reply in done.items():
        seqs = given.get((thread, token, reply["nonce"]))
        if seqs is None:
            judged.breach("replies_were_given", f"{thread}: the agent never gave the reply of turn {token}")
        elif not set(answered.get((thread, token), ())) <= set(seqs):
            judged.breach("replies_were_given", f"{thread}: turn {token} answered more than its reply was given to")
    written: Counter[tuple[str, int]] = Counter()
    for thread, token, nonce in rows:
        written[thread, token] += 1
        reply = done.get((thread, token))
        if reply is None or reply["nonce"] != nonce:
            judged.breach("application_agrees", f"{thread}: the application has a reply that turn {token} has not")
    for (thread, token), reply in done.items():
        if written[thread, token] != (reply["way"] == "conn"):
            judged.breach("application_agrees", f"{thread}: turn {token} is written {written[thread, token]} times")


def _judge_effects(judged: Judged, effects: list[Any]) -> None:
    highest: dict[str, int] = {}
    for _, thread, token in effects:
        if token < highest.get(thread, 0):
            judged.breach("effects_in_order", f"{thread}: an effect of turn {token} came after {highest[thread]}")
        highest[thread] = max(token, highest.get(thread, 0))


KINDS = {
    "lost": ("stored_once", "nothing_left", "submits_in_order", "verify"),
    "answered twice": ("answered_once", "ranges_tile", "application_agrees", "replies_were_given"),
    "stale writes accepted": ("fenced_after_reclaim", "tokens_rise", "effects_in_order"),
    "dishonest outcomes": ("outcome_was_true", "replies_agree", "answered_was_received", "dead_was_tried"),
    "other faults": ("process",),
}
"""Every check belongs to one of the promises that a published run is about."""


def by_promise(judged: Judged) -> dict[str, int]:
    """How often each promise was broken."""
    return {promise: sum(len(judged.breaches.get(name, [])) for name in names) for promise, names in KINDS.items()}


def unassigned() -> set[str]:
    """Checks that no promise counts: there may be none."""
    known = {name for names in KINDS.values() for name in names}
    return ({kind.name for kind in CHECKS} | OWN_CHECKS.keys()) ^ known
