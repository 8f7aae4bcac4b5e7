"""Write the generated documents: docs/api.md, state-machine.md, verification.md, compat.md and docs/sql/, and what is
generated in docs/performance.md.

    python -m tools.docs            write them
    python -m tools.docs --check    compare instead: print a diff and exit 1 when one is out of step

Every statement must name the tenant, unless OVER_ALL_TENANTS says why it does not.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import ClauseElement
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import psycopg

from chatlock import protocol
from chatlock.dialects import PerDialect
from chatlock.ops import catalog, transfer
from chatlock.policies import POLICIES
from tools import api, compat, peers, verification
from tools.tables import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from enum import StrEnum

Statement = Any
"""A SQLAlchemy statement, one per dialect, or its text per dialect."""

DOCS = Path(__file__).resolve().parents[1] / "docs"
DIALECTS: dict[str, Any] = {
    "sqlite": sqlite.dialect(paramstyle="named"),
    "postgresql": psycopg.dialect(paramstyle="named"),
}

_WINDOWS = "windows belong to agents, which all tenants share"
_PURGE = "a purge finds old rows of all tenants; what it changes, it changes thread by thread"
_OPERATOR = "an operator may ask about all tenants; the form for one of them stands beside it"
_EPOCH = "an epoch begins for the whole database; tokens are raised thread by thread"
OVER_ALL_TENANTS: dict[str, str] = {
    "epoch.count": _EPOCH,
    "epoch.raise": _EPOCH,
    "epoch.threads": _EPOCH,
    "fence.bound_idle": "bounds the caller's transaction and touches no row",
    "gauges.read": "metrics count over all tenants and name none",
    "intents.ready": "the poller sends for all tenants",
    "intents.ready_of_anyone": "the poller sends for all tenants",
    "purge.mark": _PURGE,
    "purge.old_turns": _PURGE,
    "purge.page": _PURGE,
    "purge.left_messages": _PURGE,
    "purge.left_effects": _PURGE,
    "purge.watermark": _PURGE,
    "reclaim.observe": "a sweep observes every running turn",
    "windows.advance": _WINDOWS,
    "windows.in_force": _WINDOWS,
    "windows.observed": _WINDOWS,
    "windows.record": _WINDOWS,
    "windows.through": _WINDOWS,
    "windows.typical": _WINDOWS,
}
OVER_ALL_TENANTS |= dict.fromkeys(
    ("due.busy", "due.list", "due.list_of_anyone", "due.of_each_queue", "due.of_each_queue_of_anyone"),
    "the poller serves all tenants",
)
OVER_ALL_TENANTS |= {
    f"{name}_of_all": _OPERATOR
    for name in (
        "arrivals.received",
        "contents.audit",
        "contents.dead",
        "contents.inbox",
        "contents.intents",
        "contents.turns",
        "forget.old_dead",
        "load.ended",
        "load.intents",
        "load.running",
        "load.waiting",
        "report.oldest_running",
        "report.overdue",
        "report.running",
        "report.stale",
        "report.threads",
    )
}
OVER_ALL_TENANTS |= dict.fromkeys(("diagnose.backend", "diagnose.journal", "load.clock"), "touches no row")
OVER_ALL_TENANTS |= dict.fromkeys(
    ("report.running_of_each", "report.service"), "says how the pollers and workers of all tenants are"
)
_TRANSFER = "a store is moved as a whole"
OVER_ALL_TENANTS |= {f"transfer.{verb}_{table}": _TRANSFER for verb in ("read", "count") for table in transfer.TABLES}
OVER_ALL_TENANTS |= dict.fromkeys(
    [
        *(f"transfer.{name}" for name in ("lock", "mark", "read_meta", "running", "unmark", "write_meta")),
        "transfer.write_windows",
    ],
    _TRANSFER,
)
OVER_ALL_TENANTS |= dict.fromkeys(("runs.cut_off", "runs.days", "runs.recorded"), _WINDOWS)
"""Statements that do not name the tenant, each with its reason."""

ONE_DIALECT = {
    "diagnose.backend": "postgresql",
    "diagnose.journal": "sqlite",
    "fence.bound_idle": "postgresql",
    "fence.lock": "postgresql",
    "fence.touch": "sqlite",
    "transfer.lock": "postgresql",
}
"""Statements that only one database is asked."""

_BINDS = re.compile(r"(?<!:):(?P<name>\w+)(::\w+)?|__\[POSTCOMPILE_(?P<expanding>\w+)\]")
_BREAKS = re.compile(r" (?=(?:SET|WHERE|AND|VALUES|ON CONFLICT|RETURNING)\b)")

_NAMES_TENANT = re.compile(
    r"\btenant\s*=\s*(CAST\()?[:%?$]"  # compared with a value; a join to another row's tenant is not enough
    r"|\((\w+\.)?tenant\b[^)]*\)\s+IN\b"
    r"|\btenant\s*=\s*waited\.column1\b"  # a list of values, joined as a table
    r"|INSERT INTO \w+\s*\([^)]*\btenant\b",
    re.IGNORECASE,
)


def diagram() -> str:
    """The edges between statuses as Mermaid; events between the same two share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for edge in protocol.TRANSITIONS:
        source = "[*]" if edge.source is protocol.Status.ABSENT else edge.source.value
        arrows[source, edge.target.value].append(edge.event.value)
    lines = [f"    {s} --> {t}: {', '.join(events)}" for (s, t), events in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def _described(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())


def words(kind: type[StrEnum]) -> str:
    """The members of an enumeration, in order."""
    return " · ".join(f"`{member.value}`" for member in kind)


def _outcomes() -> list[type[protocol.Outcome]]:
    return protocol.Outcome.__subclasses__()


def state_machine() -> str:
    """docs/state-machine.md: everything in it comes from chatlock/protocol.py and policies.py."""
    refused = sum(not targets for _, _, targets in protocol.conformance_cases())
    legal = len(protocol.conformance_cases()) - refused
    sections = [
        "# The state machine",
        "<!-- Generated from chatlock/protocol.py and policies.py by `python -m tools.docs`: edit those files. -->",
        "Each arrow is one database transaction. It locks the thread's row, tests its guard and is "
        "judged by the rows that it changed: where the guard does not hold, nothing is written.",
        diagram(),
        "## Edges",
        table(
            ("status", "event", "next status", "guard", "op"),
            ((e.source.value, e.event.value, e.target.value, e.guard, e.op) for e in protocol.TRANSITIONS),
        ),
        f"Of the {refused + legal} pairs of a status and an event {legal} are legal; the other "
        f"{refused} are refused, and the test suite tries every one of them.",
        "## How a turn ends",
        _described(protocol.TurnState),
        words(protocol.TurnState),
        "## What becomes of a message",
        _described(protocol.Disposition),
        words(protocol.Disposition),
        "## What a caller is told",
        table(("outcome", "meaning"), ((o.__name__, _described(o)) for o in _outcomes())),
        "## Policies",
        table(("policy", "what a message does"), ((n, p.text) for n, p in POLICIES.items())),
        "## Invariants",
        "Constraints carry them where SQL can say them; `chat.verify()` checks all of them on a live database.",
        table(("", "holds in every committed state"), protocol.INVARIANTS.items()),
    ]
    return "\n\n".join(sections) + "\n"


def compiled(name: str, statement: Statement, dialect: str) -> str | None:
    """The statement's text for a dialect; None where that database is not asked it."""
    if ONE_DIALECT.get(name, dialect) != dialect:
        return None
    if isinstance(statement, PerDialect):
        statement = statement._asdict()[dialect]
    if isinstance(statement, ClauseElement):
        return with_literals(statement.compile(dialect=DIALECTS[dialect]))
    return str(statement[dialect])


def with_literals(compiled: Any) -> str:
    """A clause per line, with the values that the code fixes; what callers bind keeps its name."""

    def literal(match: re.Match[str]) -> str:
        name = match["name"] or match["expanding"]
        bind = compiled.binds.get(name)
        if bind is None:
            return match[0]
        if bind.required:
            return f":{name}" if match["expanding"] else match[0]
        values = bind.value if match["expanding"] else [bind.value]
        return ", ".join("NULL" if value is None else repr(value) for value in values)

    return _BREAKS.sub("\n", _BINDS.sub(literal, str(compiled)))


def tidy(sql: str) -> str:
    """No empty line, no trailing space, one closing semicolon."""
    lines = [line.rstrip() for line in sql.strip().rstrip(";").splitlines()]
    return "\n".join(line for line in lines if line) + ";"


def sql_files(statements: Iterable[tuple[str, Statement]]) -> dict[str, str]:
    """The files of docs/sql/, one per op (what stands before the dot of a name) and dialect."""
    parts: dict[str, list[str]] = defaultdict(list)
    for name, statement in statements:
        for dialect in DIALECTS:
            if text := compiled(name, statement, dialect):
                parts[f"{name.split('.')[0]}.{dialect}.sql"].append(f"-- {name}\n{tidy(text)}\n")
    return {file: "\n".join(texts) for file, texts in sorted(parts.items())}


def tenant_faults(statements: Iterable[tuple[str, Statement]]) -> list[str]:
    """Statements that miss the tenant without a reason, and reasons that no statement needs."""
    without = {
        name
        for name, statement in statements
        for dialect in DIALECTS
        if (text := compiled(name, statement, dialect)) and not _NAMES_TENANT.search(text)
    }
    return [f"{name} does not name the tenant" for name in sorted(without - OVER_ALL_TENANTS.keys())] + [
        f"{name} is listed in OVER_ALL_TENANTS, but names the tenant or is gone"
        for name in sorted(OVER_ALL_TENANTS.keys() - without)
    ]


def generated(statements: Iterable[tuple[str, Statement]]) -> dict[Path, str]:
    """Every generated file with its text."""
    files = {DOCS / "sql" / name: text for name, text in sql_files(statements).items()}
    pages = {
        "api.md": api.page(),
        "state-machine.md": state_machine(),
        "verification.md": verification.page(),
        "compat.md": compat.page(),
        "performance.md": peers.page(),
    }
    return files | {DOCS / name: text for name, text in pages.items()}


def differences(files: Mapping[Path, str]) -> list[str]:
    """What `write` would change, as unified diffs."""
    found: list[str] = []
    for path in sorted(files.keys() | set((DOCS / "sql").glob("*.sql"))):
        old = path.read_text() if path.exists() else ""
        name = path.relative_to(DOCS.parent).as_posix()
        found += difflib.unified_diff(
            old.splitlines(),
            files.get(path, "").splitlines(),
            f"{name} (committed)",
            f"{name} (generated)",
            lineterm="",
        )
    return found


def write(files: Mapping[Path, str]) -> None:
    """Bring docs/ in step, and remove SQL files whose op is gone."""
    for stale in set((DOCS / "sql").glob("*.sql")) - files.keys():
        stale.unlink()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main(args: list[str] | None = None) -> int:
    """Exit status: 0 when all is well, 1 with the reasons on standard output."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args(args).check
    statements = list(catalog())
    faults = tenant_faults(statements)
    files = generated(statements)
    if check:
        faults += differences(files)
    else:
        write(files)
    state = "in step" if check else "written"
    print("\n".join(faults) or f"{len(files)} generated files are {state}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
