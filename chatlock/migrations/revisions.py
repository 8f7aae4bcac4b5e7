"""The revision files, run by Alembic without an env.py and without its global `op`.

So they run alone and nested inside a revision of the application's own alike: each file has an
`upgrade(op)`, and its `phase` says when it is applied: "pre" before the new code is deployed,
"post" after the old code has gone.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from chatlock.dialects import BEGIN
from chatlock.errors import InvalidInput
from chatlock.migrations.transaction import LOCK_SQL
from chatlock.schema import VERSION_TABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Connection

HERE = Path(__file__).parent
DIRECTORIES = (HERE / "versions",)


def scripts(directories: Sequence[Path] = DIRECTORIES) -> ScriptDirectory:
    """The revision files of these directories, in their order."""
    return ScriptDirectory(HERE, version_locations=directories)


def apply(conn: Connection, to: int | str, directories: Sequence[Path] = DIRECTORIES) -> None:
    """Run what is missing up to `to`, in the transaction that is open."""
    options = _options(scripts(directories), to)
    _run(MigrationContext.configure(conn, opts=options))


def render(dialect: str, from_: int | str | None, to: int | str, directories: Sequence[Path] = DIRECTORIES) -> str:
    """What `apply` would run after `from_`, as text with its own BEGIN, lock and COMMIT."""
    script, text = scripts(directories), StringIO()
    start = None if from_ is None else _revision_id(script, from_)
    options = _options(script, to, as_sql=True, output_buffer=text, starting_rev=start)
    _run(MigrationContext.configure(dialect_name=dialect, opts=options))
    lock = f"{LOCK_SQL};\n\n" if dialect == "postgresql" else ""
    return f"{BEGIN[dialect]};\n\n{lock}{text.getvalue()}COMMIT;\n"


def _options(script: ScriptDirectory, to: int | str, **more: Any) -> dict[str, Any]:
    goal = _revision_id(script, to)

    def steps(found: Any, _context: MigrationContext) -> Any:
        at_goal = any(goal <= revision for revision in found)
        return [] if at_goal else script._upgrade_revs(goal, found)

    return {"version_table": VERSION_TABLE, "script": script, "fn": steps, **more}


def _revision_id(script: ScriptDirectory, name: int | str) -> str:
    """`name` ("head" or a number) as its file spells it, which sorts as the number does."""
    if name == "head":
        return str(script.get_current_head())
    spelled = f"{name:0>4}"
    if spelled not in {found.revision for found in script.walk_revisions()}:
        raise InvalidInput("bad_revision", f"there is no schema revision {name!r}")
    return spelled


def _run(context: MigrationContext) -> None:
    context.run_migrations(op=Operations(context))
