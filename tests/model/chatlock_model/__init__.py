"""Executable model of the chatlock protocol, for one thread.

The model is a transition system. One step of an actor is ONE database transaction, which is sound
because every transaction of chatlock locks the thread row first. The explorer therefore enumerates
every interleaving of transactions, crashes, expiries, lost acknowledgements, handler failures and
deletions within the budgets of a Config. There is no clock: a lease may run out at any time.

A *mutant* is the same model with one named rule weakened. Every mutant has to produce a violation,
otherwise the checks prove nothing. Where a mutant stands for a statement that lets others in
half-way, it splits one step into two.

A state is a `bytes` object; class Layout says what each byte means.
"""

from __future__ import annotations

from .config import PC, RINC, SEEN, TOK, UPTO, Config, Layout, System
from .mutants import MUTANTS, mutant_config
from .system import make
from .words import (
    ANSWERED,
    CLOSE,
    END,
    FIN,
    IDLE,
    OTHER,
    PENDING,
    RUN,
    RUN_ON,
    WORK,
    Breach,
    Violation,
)

__all__ = [
    "ANSWERED",
    "CLOSE",
    "END",
    "FIN",
    "IDLE",
    "MUTANTS",
    "OTHER",
    "PC",
    "PENDING",
    "RINC",
    "RUN",
    "RUN_ON",
    "SEEN",
    "TOK",
    "UPTO",
    "WORK",
    "Breach",
    "Config",
    "Layout",
    "System",
    "Violation",
    "make",
    "mutant_config",
]
