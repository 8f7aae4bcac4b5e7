"""What became of messages, judged from the log that handlers and senders write: one line an event.

    sent THREAD MESSAGE NS              the sender begins to hand it in
    accepted THREAD MESSAGE NS NS       when that began and ended, where the peer took it
    begin THREAD MESSAGE NS PID TURN    a handler begins with it
    end THREAD MESSAGE NS PID TURN      and is done
    killed PID NS                       a worker was killed

NS are nanoseconds of the machine's monotonic clock, so that all processes share one time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass
class Handling:
    """One try of a handler at a message."""

    thread: str
    message: str
    turn: str
    pid: int
    begin: int
    end: float = math.inf
    """When it was done, or its process killed; infinity while neither is known."""
    done: bool = False


@dataclass
class Log:
    """A log as it was read."""

    sent: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, tuple[int, int]] = field(default_factory=dict)
    handlings: list[Handling] = field(default_factory=list)

    def done(self) -> set[str]:
        """The messages that a handler was done with."""
        return {handling.message for handling in self.handlings if handling.done}

    def only(self, prefix: str) -> Log:
        """The same of the messages whose names begin with `prefix`."""
        return Log(
            {name: at for name, at in self.sent.items() if name.startswith(prefix)},
            {name: at for name, at in self.accepted.items() if name.startswith(prefix)},
            [handling for handling in self.handlings if handling.message.startswith(prefix)],
        )


def read(text: str) -> Log:
    """The log of whole lines; what is still being written is left out."""
    log, open_ones = Log(), dict[tuple[str, str, str], Handling]()
    for line in text[: text.rfind("\n") + 1].splitlines():
        kind, *fields = line.split()
        if kind == "sent":
            log.sent[fields[1]] = int(fields[2])
        elif kind == "accepted":
            log.accepted[fields[1]] = int(fields[2]), int(fields[3])
        elif kind == "begin":
            handling = Handling(fields[0], fields[1], fields[4], int(fields[3]), int(fields[2]))
            log.handlings.append(handling)
            open_ones[fields[1], fields[3], fields[4]] = handling
        elif kind == "end":
            handling = open_ones.pop((fields[1], fields[3], fields[4]))
            handling.end, handling.done = int(fields[2]), True
        elif kind == "killed":
            for handling in open_ones.values():
                if handling.pid == int(fields[0]):
                    handling.end = min(handling.end, int(fields[1]))
        else:
            raise ValueError(f"no such line in a log: {kind}")
    return log


def overlaps(log: Log) -> int:
    """How often a handler began on a thread while another was at work there."""
    count = 0
    for handlings in _of_each_thread(log).values():
        latest = -math.inf
        for handling in handlings:
            count += handling.begin < latest
            latest = max(latest, handling.end)
    return count


def out_of_order(log: Log) -> int:
    """How many messages were begun before another of their thread that was accepted before they were handed in."""
    count = 0
    for handlings in _of_each_thread(log).values():
        firsts = list({handling.message: None for handling in handlings})
        earliest_later = math.inf
        for message in reversed(firsts):
            handed_in, taken = log.accepted[message]
            count += earliest_later < handed_in
            earliest_later = min(earliest_later, taken)
    return count


def duplicates(log: Log) -> int:
    """How often a handler was done with a message that one was done with already."""
    return sum(handling.done for handling in log.handlings) - len(log.done())


def missing(log: Log) -> int:
    """How many messages were sent and no handler was done with."""
    return len(log.sent.keys() - log.done())


def turns(log: Log) -> int:
    """In how many turns the messages were handled."""
    return len({(handling.thread, handling.turn, handling.pid) for handling in log.handlings})


def hand_offs(log: Log) -> list[float]:
    """Seconds from a handler's end to the next one's beginning on the same thread, in another turn."""
    gaps = []
    for handlings in _of_each_thread(log).values():
        for one, after in pairwise(handlings):
            if one.turn != after.turn:
                gaps.append((after.begin - one.end) / 1e9)
    return gaps


def latencies(log: Log, cut: int) -> list[float]:
    """Seconds from a message's being sent to the first handler's beginning; to `cut` where there was none."""
    begun: dict[str, int] = {}
    for handling in log.handlings:
        begun[handling.message] = min(handling.begin, begun.get(handling.message, handling.begin))
    return [(begun.get(message, cut) - at) / 1e9 for message, at in log.sent.items()]


def rate(log: Log) -> float:
    """Messages a second, from the first handler's beginning to the last one's end."""
    done = [handling for handling in log.handlings if handling.done]
    if len(done) < 2:
        return 0.0
    return len(log.done()) / ((max(h.end for h in done) - min(h.begin for h in done)) / 1e9)


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _of_each_thread(log: Log) -> dict[str, list[Handling]]:
    found: dict[str, list[Handling]] = defaultdict(list)
    for handling in sorted(log.handlings, key=lambda handling: handling.begin):
        found[handling.thread].append(handling)
    return found
