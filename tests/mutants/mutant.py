"""A seeded bug, and the tests that such bugs name."""

from __future__ import annotations

from typing import NamedTuple

SIM = "tests/sim/test_sim.py"
EXECUTOR = "tests/unit/test_executor.py"
GUARDS = "tests/races/test_guards.py -k"
OVERDUE = f"{GUARDS} lock_overdue"
DISPATCH = "tests/races/test_recovery.py -k lease"
LANGGRAPH_LEFT = "tests/frameworks/with_langgraph/test_left.py"
LANGGRAPH_SAVER = "tests/frameworks/with_langgraph/test_saver.py"
LANGGRAPH_QUESTIONS = "tests/frameworks/with_langgraph/test_questions.py"
LANGGRAPH_RUNS = "tests/frameworks/with_langgraph/test_runs.py"
AGENTS = "tests/frameworks/with_openai_agents/test_history.py"
STOPPING = "tests/frameworks/test_stopping.py"
SLACK = "tests/frameworks/test_slack.py"
TELEGRAM = "tests/frameworks/test_telegram.py"
HANDLERS = "tests/unit/test_handlers.py"
OTEL = "tests/frameworks/test_otel.py -k 'turn_elsewhere or real_worker'"


def on_sqlite(file: str, words: str = "") -> str:
    """The tests of a conformance file whose names hold the words."""
    return f"tests/conformance/test_{file}.py -k " + (f"'sqlite and {words}'" if words else "sqlite")


POLICIES = on_sqlite("policies")
ASK = on_sqlite("questions")
EDIT = on_sqlite("edit")
STOP = on_sqlite("stop")
INTERRUPT = on_sqlite("interrupt")
ESTIMATES = on_sqlite("estimates", "does_not_wait")
HOOKS = on_sqlite("hooks", "trace")
SHARING = on_sqlite("sharing")


class Mutant(NamedTuple):
    """One weakened rule: in `file` of chatlock/, `text` becomes `instead`; `test` goes red."""

    name: str
    file: str
    text: str
    instead: str
    test: str
