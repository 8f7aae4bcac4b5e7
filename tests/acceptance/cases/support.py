"""The controls of the acceptance cases: what holds, parks, cuts, ages, counts and quiesces.

    H  `Agent`            a handler that reports each turn and holds it until the test lets it go
    X  `parked_row`       a connection of the test holds a thread's row, so that the product waits
    W  `Points`           holds one client at a named pause point; `hold_statement` at a statement
    T  `Proxy` (wire.py)  a wire in front of a server that holds a message, or cuts around it
    K  `stop_at_point`, `stop_at_statement`   a child stops there until the test kills it
    A  `age_claim`, `age_message`, then `reclaim_aged` on a set clock
    M  `Journal`          overlap meter and answer ledger, across processes and kills; `Callers.replies`
       is the reply sink; `EffectSink`       an outside world that can refuse a stale token
    Q  `quiesce`          sweeps until nothing is left; `assert_invariants` then checks N1 to N8

None of them sleeps for an order: each waits, bounded, for a fact that it can see.
"""

from __future__ import annotations

from tests.acceptance.cases.agents import Agent, Callers, ProcessGate
from tests.acceptance.cases.gates import (
    Points,
    hold_statement,
    parked_row,
    stop_at_point,
    stop_at_statement,
    stop_here,
    wait_blocked,
)
from tests.acceptance.cases.invariants import (
    SetClock,
    age_claim,
    age_message,
    assert_invariants,
    quiesce,
    reclaim_aged,
    skip_backoff,
)
from tests.acceptance.cases.meters import EffectSink, Entry, Journal
from tests.acceptance.cases.rows import TENANT, message_rows, row_count, rows, thread_row, turn_rows
from tests.acceptance.cases.wire import Proxy
from tests.support.waiting import SECONDS_MAX, Gate, until

__all__ = [
    "SECONDS_MAX",
    "TENANT",
    "Agent",
    "Callers",
    "EffectSink",
    "Entry",
    "Gate",
    "Journal",
    "Points",
    "ProcessGate",
    "Proxy",
    "SetClock",
    "age_claim",
    "age_message",
    "assert_invariants",
    "hold_statement",
    "message_rows",
    "parked_row",
    "quiesce",
    "reclaim_aged",
    "row_count",
    "rows",
    "skip_backoff",
    "stop_at_point",
    "stop_at_statement",
    "stop_here",
    "thread_row",
    "turn_rows",
    "until",
    "wait_blocked",
]
