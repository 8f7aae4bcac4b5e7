"""Seeded bugs: each weakens one rule of the core, and names the test that must go red.

    make mutants                     # every one, each in a copy of the tree; prints the table
    make mutants ARGS="finish"       # those whose name holds the word
    make mutants ARGS="--sim 100"    # those of code that the simulation runs, judged by so many seeds of it alone

`make test` looks whether every text is still found exactly once.
"""

from __future__ import annotations

from tests.mutants.judge import RED, ROOT, Record, Verdict, mutate, text_faults
from tests.mutants.mutant import SIM, Mutant
from tests.mutants.table import TABLE

__all__ = ["RED", "ROOT", "SIM", "TABLE", "Mutant", "Record", "Verdict", "mutate", "text_faults"]
