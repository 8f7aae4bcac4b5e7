"""Moving a store: out of SQLite into a file, and from the file into an empty database.

Both halves can be run again: an export reads the marked store anew, an import is one transaction, done or not.
The file is JSON lines: a head, each table's rows, and an end that counts them and holds the hash of what is before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Connection

from chatlock.errors import ChatlockError, InvalidInput
from chatlock.executor import Executor
from chatlock.inputs import INTEGER_MAX
from chatlock.ops import transfer
from chatlock.ops.verify import verify
from chatlock.schema import SCHEMA_VERSION
from chatlock.wording import counted

KIND = "chatlock export"
BATCH = 500

Progress = Callable[[str, int], object]


class TransferRefused(ChatlockError):
    """A store cannot be exported or imported as it is; nothing was written."""


@dataclass(frozen=True)
class Moved:
    """What was exported or imported: rows by table, and turns that were running and are released.

    already: this export had been imported before; nothing was written.
    """

    rows: dict[str, int]
    released: int = 0
    already: bool = False


def export_store(executor: Executor, path: Path, *, force: bool, progress: Progress) -> Moved:
    """Marks an SQLite store as moved, under its write lock, and writes all of it to `path`, for its owner's eyes alone.

    From then on every write to the store is refused, also those of processes that still run.  Safe to repeat: a store
    that is marked is read again.  progress(table, rows) is called after each table.  Raises TransferRefused while turns
    run, unless force; InvalidInput for another database.
    """
    if executor.read("export.kind", lambda c: c.dialect.name) != "sqlite":
        raise InvalidInput("not_sqlite", "only an SQLite store is exported; to copy PostgreSQL use pg_dump")
    executor.transaction("export.mark", lambda c: _mark(c, force))
    part = path.with_name(f"{path.name}.part")
    rows = executor.snapshot("export.read", lambda c: _write_file(c, part, progress))
    os.replace(part, path)
    return Moved(rows)


def undo_export(executor: Executor) -> None:
    """Lets a store that was marked as moved take writes again.  Not after its export was imported elsewhere."""
    executor.transaction("export.undo", transfer.unmark_moved)


def import_store(executor: Executor, path: Path, *, progress: Progress) -> Moved:
    """Writes an export into an empty database and checks every invariant, in one transaction.

    Turns that ran when the store was moved are released: their messages are due again under a higher token.  Raises
    TransferRefused where the file is cut short or altered, of another schema, or the database holds rows.
    """
    for _ in _checked_lines(path):  # to its end, before anything is written
        pass
    return executor.transaction("import", lambda c: _read_file(c, path, progress))


def _mark(conn: Connection, force: bool) -> None:
    if transfer.MOVED_AT in transfer.read_numbers(conn):
        return
    running = transfer.count_running(conn)
    if running and not force:
        turns = counted(running, "turn runs", "turns run")
        raise TransferRefused(f"{turns}: wait until none does, or give --force: the import releases what runs")
    transfer.mark_moved(conn, secrets.randbelow(INTEGER_MAX) + 1)


def _write_file(conn: Connection, path: Path, progress: Progress) -> dict[str, int]:
    numbers, counts, hashed = transfer.read_numbers(conn), dict[str, int](), hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8", newline="\n") as file:

        def write(**facts: Any) -> None:
            line = json.dumps(facts, ensure_ascii=False, separators=(",", ":")) + "\n"
            hashed.update(line.encode())
            file.write(line)

        write(kind=KIND, revision=SCHEMA_VERSION, numbers=numbers)
        for table in transfer.TABLES:
            counts[table] = 0
            for row in transfer.read_rows(conn, table):
                write(table=table, row=row)
                counts[table] += 1
            progress(table, counts[table])
        write(rows=counts, sha256=hashed.hexdigest())
        file.flush()
        os.fsync(file.fileno())
    return counts


def _read_file(conn: Connection, path: Path, progress: Progress) -> Moved:
    transfer.lock_store(conn)
    lines = _checked_lines(path)
    head = next(lines, {})
    if head.get("kind") != KIND or head.get("revision") != SCHEMA_VERSION:
        raise TransferRefused(f"{path.name} is no export of a store at schema revision {SCHEMA_VERSION}")
    numbers = {name: int(value) for name, value in head["numbers"].items()}
    before = transfer.read_numbers(conn)
    if before.get(transfer.EXPORT_ID) == numbers[transfer.EXPORT_ID]:
        return Moved(transfer.count_rows(conn), already=True)
    if any(transfer.count_rows(conn).values()):
        raise TransferRefused("the database to import into holds chatlock rows already")
    counts = _write_rows(conn, lines, progress)
    if transfer.count_rows(conn) != counts:
        raise AssertionError("the database holds other rows than the export")
    kept = (*transfer.NUMBERS, transfer.EXPORT_ID)
    transfer.write_numbers(conn, {name: numbers[name] for name in kept if name in numbers})
    released = transfer.release_moved(conn)
    verified = verify(conn, None)
    if not verified.ok:
        raise TransferRefused(f"the export breaks {len(verified.breaches)} invariants; nothing was written")
    return Moved(counts, released)


def _write_rows(conn: Connection, lines: Iterator[dict[str, Any]], progress: Progress) -> dict[str, int]:
    counts = dict.fromkeys(transfer.TABLES, 0)
    while chunk := list(islice(lines, BATCH)):
        by_table: dict[str, list[dict[str, Any]]] = {}
        for line in chunk:
            by_table.setdefault(line["table"], []).append(line["row"])
        for table, rows in by_table.items():
            transfer.write_rows(conn, table, rows)
            counts[table] += len(rows)
            progress(table, counts[table])
    return counts


def _checked_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines before the end.  Raises TransferRefused unless the end comes, and agrees with what was before it."""
    broken = TransferRefused(f"{path.name} is cut short or altered; nothing was written")
    hashed, counts = hashlib.sha256(), dict.fromkeys(transfer.TABLES, 0)
    with path.open("rb") as file:
        for text in file:
            try:
                line = json.loads(text.decode())
            except (ValueError, RecursionError):
                raise broken from None
            if not isinstance(line, dict):
                raise broken
            if "sha256" in line:
                if line != {"rows": counts, "sha256": hashed.hexdigest()} or file.readline():
                    raise broken
                return
            hashed.update(text)
            if "table" in line:
                if not isinstance(line["table"], str) or line["table"] not in counts:
                    raise broken
                counts[line["table"]] += 1
            yield line
    raise broken
