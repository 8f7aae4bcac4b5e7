"""What is measured of each peer, always from the log of its handlers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from bench.peers import judge
from bench.peers.stage import Stage

HOT_WORK_S, HAND_OFF_WORK_S, TURN_WORK_S = 0.005, 0.002, 3.0
PACE_S = 0.025
ACCEPT_S = 1.0
"""How long may be waited until all are queued: a plain lock never has them all."""
HAND_OFFS = 60
HOT, QUEUE, CRASH = "hot", "queue", "crash"


@dataclass(frozen=True)
class Sizes:
    """How much is sent, and how long is waited for it."""

    rounds: int = 3
    drained: int = 1_000
    drain_s: float = 6.0
    hot: int = 500
    beside: int = 40
    wait_s: float = 8.0
    crash_s: float = 90.0

    @property
    def threads(self) -> tuple[str, ...]:
        """Every thread of every scenario."""
        drained = (f"d{number}" for number in range(self.drained // 10))
        beside = (f"{kind}{number}" for kind in ("free", "beside") for number in range(self.beside))
        return (*drained, *beside, *(f"warm{number}" for number in range(4)), HOT, QUEUE, CRASH)


QUICK = Sizes(rounds=1, drained=200, drain_s=4.0, hot=200, beside=20, wait_s=6.0, crash_s=20.0)


def drain(stage: Stage, sizes: Sizes) -> dict[str, Any]:
    """Messages over a tenth as many threads are sent while the workers are stopped; then these go on."""
    count, names = sizes.drained // 10, [f"drain{number}" for number in range(sizes.drained)]
    with stage.stopped():
        for number, name in enumerate(names):
            stage.send(f"d{number % count}", name)
        stage.analyze()
    stage.done(names, sizes.drain_s)
    log = stage.log().only("drain")
    return {
        "per_s": round(judge.rate(log), 1),
        "done": len(log.done()),
        "sent": len(log.sent),
        "turns": judge.turns(log),
        "overlaps": judge.overlaps(log),
        "out_of_order": judge.out_of_order(log),
        "duplicates": judge.duplicates(log),
    }


def hand_off(stage: Stage, sizes: Sizes) -> dict[str, Any]:
    """Messages queued on one thread: from a handler's end to the next one's beginning."""
    names = [f"queued{number}" for number in range(HAND_OFFS)]
    for name in names:
        stage.send(QUEUE, name, HAND_OFF_WORK_S)
    stage.done(names, sizes.wait_s)
    log = stage.log().only("queued")
    gaps = judge.hand_offs(log)
    if judge.missing(log):  # the one that was waited for is at least so long
        gaps.append((time.monotonic_ns() - max(handling.end for handling in log.handlings)) / 1e9)
    return {**spread(gaps), "missing": judge.missing(log), "overlaps": judge.overlaps(log)}


def beside(stage: Stage, sizes: Sizes, kind: str) -> dict[str, Any]:
    """A message every 25 ms, each on a thread of its own: from its being sent to its handler's beginning."""
    begin = time.monotonic()
    for number in range(sizes.beside):
        time.sleep(max(0.0, begin + number * PACE_S - time.monotonic()))
        stage.send(f"{kind}{number}", f"{kind}{number}")
    stage.done((f"{kind}{number}" for number in range(sizes.beside)), sizes.wait_s)
    log = stage.log().only(kind)
    return {**spread(judge.latencies(log, time.monotonic_ns())), "missing": judge.missing(log)}


def hot(stage: Stage, sizes: Sizes) -> dict[str, Any]:
    """The same while messages are queued on one thread, each of which takes 5 ms."""
    for number in range(sizes.hot):
        stage.send(HOT, f"hot{number}", HOT_WORK_S)
    stage.until(lambda log: len(log.only("hot").accepted) == sizes.hot, ACCEPT_S)
    found = beside(stage, sizes, "beside")
    return found | {"hot_left": judge.missing(stage.log().only("hot"))}


def crash(stage: Stage, sizes: Sizes) -> dict[str, Any]:
    """A worker is killed while its handler runs: when is the message handled again, and the next of its thread?"""
    stage.send(CRASH, "crash", TURN_WORK_S)
    stage.until(lambda log: bool(log.only("crash").handlings), 30)
    time.sleep(TURN_WORK_S / 3)
    killed = stage.kill(stage.log().only("crash").handlings[0].pid)
    stage.send(CRASH, "next")
    both = {"crash", "next"}
    over = stage.done(both, sizes.crash_s)
    log = stage.log()
    return {
        "again_s": _after(log.only("crash"), killed),
        "next_s": _after(log.only("next"), killed),
        "waited_s": None if over else sizes.crash_s,
        "overlaps": judge.overlaps(log),
    }


def spread(seconds: list[float]) -> dict[str, float]:
    """What is kept of many times."""
    p50, p99 = (round(judge.percentile(seconds, share), 6) for share in (0.5, 0.99))
    return {"count": len(seconds), "p50": p50, "p99": p99, "max": round(max(seconds), 6)}


def _after(log: judge.Log, killed: int) -> float | None:
    """Seconds from the kill to the first handler that began after it; None: none did."""
    begun = [round((handling.begin - killed) / 1e9, 4) for handling in log.handlings if handling.begin > killed]
    return min(begun, default=None)
