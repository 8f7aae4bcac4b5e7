"""What the tests share: real servers, a database per test, processes, bounded waits."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONG = os.environ.get("CHATLOCK_LONG") == "1"


def scaled(short: int, long: int) -> int:
    """How many rounds a test plays: `make test` plays `short`, `make test-long` plays `long`."""
    return long if LONG else short
