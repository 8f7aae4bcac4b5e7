"""The tables of a run, from its JSON: medians over the rounds."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.peers import CHATLOCK

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
    rows = [("", "free: p50, p99", "beside a hot thread: p50, p99", "of free", "hand-off: p50, p99")]
    for name, peer in run["peers"].items():
        rounds = peer["rounds"]
        rows.append(
            (
                name,
                _pair(rounds, "free"),
                _pair(rounds, "hot"),
                ", ".join(f"{median(_ratios(rounds, share)):,.1f} x" for share in ("p50", "p99")),
                "in one turn" if peer["batches"] else _pair(rounds, "hand_off"),
            )
        )
    return _table(rows)


def _pair(rounds: list[Round], what: str) -> str:
    """The medians over the rounds, and how many messages were not handled while it was waited for them."""
    missing = median(each[what]["missing"] for each in rounds)
    times = ", ".join(_seconds(median(each[what][share] for each in rounds)) for share in ("p50", "p99"))
    return times + (f"; {missing} not handled" if missing else "")


def _ratios(rounds: list[Round], share: str) -> list[float]:
    """Beside a hot thread against free, in each round."""
    return [each["hot"][share] / each["free"][share] for each in rounds]


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
