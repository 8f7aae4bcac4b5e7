"""The operations: plain functions of a SQLAlchemy Connection, a file per verb.  Each is one transaction."""

from __future__ import annotations

from typing import Any

from chatlock.ops import (
    arrivals,
    audit,
    base,
    claim,
    contents,
    diagnose,
    due,
    edit,
    epoch,
    fence,
    fetch,
    finish,
    forget,
    gauges,
    heartbeat,
    hot,
    inspect,
    intents,
    load,
    operate,
    purge,
    report,
    runs,
    stop,
    submit,
    transfer,
    unanswered,
    verify,
    windows,
)

__all__ = [
    "arrivals",
    "audit",
    "base",
    "catalog",
    "claim",
    "contents",
    "diagnose",
    "due",
    "edit",
    "epoch",
    "fence",
    "fetch",
    "finish",
    "forget",
    "gauges",
    "heartbeat",
    "hot",
    "inspect",
    "intents",
    "load",
    "operate",
    "purge",
    "report",
    "runs",
    "stop",
    "submit",
    "transfer",
    "unanswered",
    "verify",
    "windows",
]


def catalog() -> list[tuple[str, Any]]:
    """Every statement of chatlock with its name, for docs/sql and for tests."""
    return sorted(base.CATALOG.items())
