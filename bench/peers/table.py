"""The tables of a run, from its JSON: medians over the rounds."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from bench.peers import CHATLOCK
from bench.peers.judge import percentile

Round = dict[str, Any]


def tables(run: dict[str, Any]) -> str:
    """Speed, then crashes."""
    return "\n\n".join([_drains(run), _times(run), _crashes(run)])


def _drains(run: dict[str, Any]) -> str:
    reference = [each["drain"]["per_s"] for each in run["peers"][CHATLOCK]["rounds"]]
    rows = [
        ("", "messages/s", "of chatlock's", "handled in time", "turns", "overlaps", "out of order", "handled twice")
    ]
    for name, peer in run["peers"].items():
        drains = [each["drain"] for each in peer["rounds"]]
        ratios = [drain["per_s"] / of for drain, of in zip(drains, reference, strict=True)]
        done, sent = (sum(drain[what] for drain in drains) for what in ("done", "sent"))
        rows.append(
            (
                name,
                f"{median(drain['per_s'] for drain in drains):,.0f}",
                f"{median(ratios):.2f} x",
                "all" if done == sent else f"{done / sent:.0%}",
                f"{median(drain['turns'] for drain in drains):,.0f}",
                *(f"{sum(drain[what] for drain in drains):,}" for what in ("overlaps", "out_of_order", "duplicates")),
            )
        )
    return _table(rows)


def _times(run: dict[str, Any]) -> str:
    rows = [("", "others, nothing queued: p50, p99", "beside a hot thread", "p50, p99 against that", "hand-off")]
    for name, peer in run["peers"].items():
        rounds = peer["rounds"]
        rows.append(
            (
                name,
                _pair(each for one in rounds for each in one["free"]["latencies"]),
                _pair(each for one in rounds for each in one["hot"]["latencies"]) + _left(rounds),
                ", ".join(f"{_ratio(rounds, share):,.1f} x" for share in (0.5, 0.99)),
                "in one turn" if peer["batches"] else _pair(gap for one in rounds for gap in one["hand_off"]["gaps"]),
            )
        )
    return _table(rows)


def _left(rounds: list[Round]) -> str:
    """How many of the messages beside a hot thread were not begun when the wait was over."""
    missing = sum(one["hot"]["missing"] for one in rounds)
    return f", {missing} not begun" if missing else ""


def _ratio(rounds: list[Round], share: float) -> float:
    """The median over the rounds of hot against free."""
    return median(
        percentile(one["hot"]["latencies"], share) / percentile(one["free"]["latencies"], share) for one in rounds
    )


def _pair(values: Iterable[float]) -> str:
    """p50 and p99."""
    found = list(values)
    return ", ".join(_seconds(percentile(found, share)) for share in (0.5, 0.99)) if found else "none"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.1f} ms"


def _crashes(run: dict[str, Any]) -> str:
    rows = [("", "the message of the killed worker", "the next of its thread", "two at once")]
    for name, peer in run["peers"].items():
        if (crash := peer.get("crash")) is None:
            continue
        again, after = (_after(crash, which) for which in ("again_s", "next_s"))
        rows.append((name, again, after, "yes" if crash["overlaps"] else "no"))
    return _table(rows)


def _after(crash: dict[str, Any], which: str) -> str:
    """How long it took, or how long was waited in vain."""
    after = crash[which]
    return f"not in {crash['waited_s']:.0f} s by itself" if after is None else f"after {_seconds(after)}"


def _table(rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])
