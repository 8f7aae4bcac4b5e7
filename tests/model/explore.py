"""Explore the protocol model exhaustively, breadth first: a counterexample is a shortest one.

    python tests/model/explore.py                 every configuration, then every mutant
    python tests/model/explore.py --quick         the small configurations, then every mutant
    python tests/model/explore.py --mutant NAME   one mutant, with its shortest counterexample
    python tests/model/explore.py --config NAME   one configuration

Exit status 0: every configuration holds and every mutant is caught for its own reason.

Safety: a Violation in any reachable transition or state.
Liveness: (a) the reachable graph has no cycle, so every run is finite; (b) wherever nothing but
faults can happen, every message is answered, dead-lettered or in a parked or deleted thread, no
waiter is left, and the thread is not claimed. Together: under any schedule that keeps taking some
enabled step that is no fault, every message is resolved.
"""

from __future__ import annotations

import argparse
import sys
import time
from array import array
from dataclasses import dataclass, field, replace
from itertools import pairwise
from multiprocessing import Pool

from chatlock_model import CLOSE, MUTANTS, RUN_ON, Breach, Config, System, Violation, make, mutant_config

STATES_MAX = 60_000_000

# The due table, the first fetch riding in the claim, hand-off, messages resolved in the middle of
# the range, latest, rollback and park are explored without the other store.
X = {"extstore": False, "deadline": True, "max_token": 40}
# Dispatchers that lease due rows to workers.
R = {**X, "rq": True, "due": True, "lazy": True, "retry": False}
QUICK = [
    Config("plain"),
    Config("fail-ack", crash=0, fail=1, acklost=1),
    Config("delete-small", crash=1, expire=0, delete=1, midfetch=False),
    Config("cancel-small", crash=0, cancel=1, acklost=1, extstore=False),
    Config(
        "no-fetch-small",
        crash=0,
        nofetch=True,
        acklost=1,
        max_attempts=3,
        extstore=False,
        max_token=20,
    ),
    Config("poison", poison=1, max_attempts=3),
    Config("hang-small", crash=0, hang=1, extstore=False, max_token=20),
    Config("failover", crash=0, lose=1, max_token=20),
    Config("rq-flush", submitters=1, pollers=3, flush=1, **R),
    Config("rq-lapse-small", submitters=1, pollers=4, dispatchers=2, lapse=1, backoff=True, **R),
    Config("notify", pollers=0, crash=0, notify_only=True, fail=1),
    Config(
        "notify-wake-all",
        submitters=3,
        pollers=0,
        expire=0,
        notify_only=True,
        extstore=False,
        retry=False,
    ),
    Config("due-small", crash=0, due=True, lazy=True, park=1, fail=1, **X),
    Config("ride-poison", expire=0, ride=True, poison=1, max_attempts=3, max_stalls=3, **X),
    Config("mid-fail", crash=0, due=True, lazy=True, midcancel=2, fail=2, **X),
    Config(
        "mid-cancel-small",
        submitters=3,
        expire=0,
        crash=0,
        due=True,
        lazy=True,
        midcancel=2,
        midfetch=False,
        retry=False,
        **X,
    ),
    Config("latest-rollback-small", crash=0, due=True, lazy=True, latest=True, rollback=1, **X),
    Config("interrupt-small", crash=0, expire=0, due=True, interrupt=1, midfetch=False, fail=1, **X),
    Config("suspend-hold-small", submitters=3, crash=0, expire=0, due=True, suspend=1, midfetch=False, **X),
    Config("suspend-run-small", crash=0, due=True, lazy=True, suspend=1, awaiting=RUN_ON, fail=1, **X),
    Config("suspend-cancel-small", crash=0, due=True, lazy=True, suspend=1, awaiting=CLOSE, **X),
    Config("stop-small", crash=0, due=True, stop=1, midfetch=False, **X),
    Config(
        "handoff-small",
        crash=0,
        expire=0,
        due=True,
        lazy=True,
        ride=True,
        handoff=2,
        acklost=1,
        **X,
    ),
]
LONG = [
    Config("delete", delete=1, midfetch=False),
    Config("cancel", crash=0, cancel=1, acklost=1),
    Config("deadline", deadline=True),
    Config("no-fetch", crash=0, nofetch=True, acklost=1, max_attempts=3, max_token=20),
    Config("hang", hang=1, max_token=20),
    Config("due", due=True, lazy=True, park=1, fail=1, **X),
    Config("ride", ride=True, crash=2, fail=1, **X),
    Config(
        "mid-cancel",
        submitters=3,
        expire=0,
        due=True,
        lazy=True,
        midcancel=2,
        midfetch=False,
        retry=False,
        **X,
    ),
    Config(
        "latest-rollback",
        submitters=3,
        crash=0,
        due=True,
        lazy=True,
        latest=True,
        rollback=1,
        midfetch=False,
        **X,
    ),
    Config("interrupt", crash=0, due=True, interrupt=2, fail=1, **X),
    Config("suspend-hold", submitters=3, crash=0, due=True, lazy=True, suspend=1, midfetch=False, **X),
    Config("suspend-park", due=True, lazy=True, suspend=1, park=1, delete=1, midcancel=1, **X),
    Config("stop", crash=0, due=True, stop=1, interrupt=1, hang=1, **X),
    Config("rq-lapse", pollers=4, dispatchers=2, lapse=1, flush=1, backoff=True, expire=0, midfetch=False, **R),
    Config("3sub", submitters=3, extstore=False),
    Config("3sub-2poll-fail", submitters=3, pollers=2, crash=0, fail=1, extstore=False, max_token=20),
    Config("2poll-2expire", pollers=2, expire=2, max_attempts=3, max_token=20),
    Config("2expire-2crash", expire=2, crash=2, max_attempts=3, max_stalls=3, max_token=24),
    Config(
        "all-faults",
        fail=1,
        acklost=1,
        delete=1,
        cancel=1,
        midfetch=False,
        extstore=False,
        max_token=24,
    ),
    Config(
        "due-2poll-3sub",
        submitters=3,
        pollers=2,
        due=True,
        lazy=True,
        midfetch=False,
        retry=False,
        **X,
    ),
    Config("due-delete-cancel", due=True, lazy=True, delete=1, cancel=1, acklost=1, **X),
    Config(
        "handoff",
        submitters=3,
        expire=0,
        due=True,
        lazy=True,
        ride=True,
        handoff=2,
        acklost=1,
        midfetch=False,
        retry=False,
        **X,
    ),
    Config("handoff-expire", pollers=2, due=True, lazy=True, handoff=2, acklost=1, **X),
    Config(
        "all-features",
        due=True,
        lazy=True,
        ride=True,
        handoff=1,
        midcancel=1,
        rollback=1,
        fail=1,
        acklost=1,
        cancel=1,
        **X,
    ),
]


def without_mutants() -> list[Config]:
    """What the mutants are explored in, once each, with nothing weakened: it has to hold, or the
    mutant would not be what was caught."""
    distinct: dict[Config, str] = {}
    for name in MUTANTS:
        distinct.setdefault(replace(mutant_config(name), name="", mut=frozenset()), name)
    return [replace(config, name="without " + name) for config, name in distinct.items()]


CONFIGS = {config.name: config for config in QUICK + LONG + without_mutants()}


class StatesExceeded(Exception):
    """The graph is larger than STATES_MAX: there is no verdict."""


@dataclass
class Exploration:
    """What an exploration saw: nothing wrong, or the first breach and a shortest way to it."""

    states: int
    transitions: int
    at_rest: int
    seconds: float
    breach: Breach | None = None
    trace: list[str] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return len(self.trace) - 1


def explore(system: System, states_max: int = STATES_MAX) -> Exploration:
    """Walk every reachable state of the system. Raises StatesExceeded rather than stop half-way."""
    started = time.monotonic()
    index = {system.initial: 0}
    states = [system.initial]
    parents = array("I", [0])
    offsets = array("L", [0])
    edges = array("I")
    at_rest = 0
    breach = None
    current = 0
    while current < len(states):
        state = states[current]
        try:
            system.check(state)
            steps = system.successors(state)
        except Violation as violation:
            breach = violation.breach
            break
        only_faults = True
        for _label, reached, is_fault in steps:
            if not is_fault:
                only_faults = False
            known = index.get(reached)
            if known is None:
                known = index[reached] = len(states)
                states.append(reached)
                parents.append(current)
            edges.append(known)
        if only_faults:
            at_rest += 1
            breach = system.rest_error(state)
            if breach:
                break
        offsets.append(len(edges))
        current += 1
        if len(states) > states_max:
            raise StatesExceeded(f"more than {states_max:,} states")
    trace = []
    if breach:
        trace = shortest_trace(system, states, parents, current)
    elif has_cycle(offsets, edges):
        breach = Breach.CYCLE
    seconds = time.monotonic() - started
    return Exploration(len(states), len(edges), at_rest, seconds, breach, trace)


def has_cycle(offsets: array[int], edges: array[int]) -> bool:
    """Topological sort: with a cycle some states never lose their last incoming edge."""
    count = len(offsets) - 1
    incoming = array("I", bytes(4 * count))
    for target in edges:
        incoming[target] += 1
    ready = [state for state in range(count) if incoming[state] == 0]
    sorted_count = 0
    while ready:
        state = ready.pop()
        sorted_count += 1
        for edge in range(offsets[state], offsets[state + 1]):
            target = edges[edge]
            incoming[target] -= 1
            if incoming[target] == 0:
                ready.append(target)
    return sorted_count != count


def shortest_trace(system: System, states: list[bytes], parents: array[int], last: int) -> list[str]:
    """The start and one line per step; the breach is in the last state or in the step after it."""
    path = [last]
    while path[-1] != 0:
        path.append(parents[path[-1]])
    path.reverse()
    lines = ["start: " + system.show(states[0])]
    for source, target in pairwise(path):
        reached = states[target]
        label = next(step[0] for step in system.successors(states[source]) if step[1] == reached)
        lines.append(f"{label}   -> {system.show(reached)}")
    return lines


def explore_config(name: str) -> tuple[str, Exploration]:
    return name, explore(make(CONFIGS[name]))


def explore_mutant(name: str) -> tuple[str, Exploration]:
    return name, explore(make(mutant_config(name)))


def report_one(name: str, seen: Exploration) -> None:
    print(f"{name}: {seen.states:,} states, {seen.transitions:,} transitions, {seen.seconds:.1f} s")
    for line in seen.trace:
        print("   " + line)
    print(seen.breach or "holds")


def report_all(names: list[str], jobs: int) -> bool:
    """Explore the configurations and every mutant; True if all came out as they must."""
    failures = states = transitions = 0
    with Pool(jobs, maxtasksperchild=1) as pool:
        print(f"{'configuration':32} {'states':>11} {'transitions':>12} {'at rest':>8} {'s':>7}")
        for name, seen in pool.imap(explore_config, names):
            failures += seen.breach is not None
            states += seen.states
            transitions += seen.transitions
            print(
                f"{name:32} {seen.states:11,} {seen.transitions:12,} {seen.at_rest:8,} "
                f"{seen.seconds:7.1f}  {seen.breach or 'holds'}",
                flush=True,
            )
        print(f"\n{'mutant':28} {'states':>8} {'steps':>5}  caught by")
        for name, seen in pool.imap(explore_mutant, MUTANTS):
            caught = seen.breach is MUTANTS[name].breaks
            failures += not caught
            verdict = seen.breach if caught else f"NOT CAUGHT: {seen.breach}"
            print(f"{name:28} {seen.states:8,} {seen.steps:5}  {verdict}", flush=True)
    print(f"\n{len(names)} configurations: {states:,} states, {transitions:,} transitions")
    print(f"{len(MUTANTS)} mutants; {failures} failures in all")
    return failures == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Explore the chatlock protocol model.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--quick", action="store_true", help="only the small configurations")
    what.add_argument("--mutant", choices=MUTANTS, metavar="NAME")
    what.add_argument("--config", choices=CONFIGS, metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    options = parser.parse_args()
    if options.mutant:
        name, seen = explore_mutant(options.mutant)
        print(MUTANTS[name].weakens)
        report_one(name, seen)
        return 0 if seen.breach is MUTANTS[name].breaks else 1
    if options.config:
        name, seen = explore_config(options.config)
        report_one(name, seen)
        return 0 if seen.breach is None else 1
    names = [config.name for config in QUICK] if options.quick else list(CONFIGS)
    return 0 if report_all(names, options.jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
