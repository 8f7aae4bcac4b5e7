"""`chatlock export` and `import`: move a store from SQLite to PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import click

from chatlock.cli.context import Context, Refused, with_database
from chatlock.cli.output import show_progress, visible
from chatlock.transfer import Moved, export_store, import_store, undo_export
from chatlock.wording import counted

MARKED = "the store is marked as moved: export it to another file, or let it go on by `chatlock export --undo --yes`"


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--force", is_flag=True, help="Although turns run: the import releases them.")
@click.option("--undo", is_flag=True, help="Let a store that was exported take writes again, and write no file.")
@click.option("--yes", is_flag=True, help="Required: the store takes no writes any more.")
@with_database
def export_command(context: Context, file: Path | None, force: bool, undo: bool, yes: bool) -> None:
    """Mark an SQLite store as moved, and write all of it to FILE.

    From then on every write to it is refused, also those of processes that still run. The file holds
    payloads and replies, and only its owner can read it. If it is cut short, run it again.

    \b
    Examples:
      chatlock export --url sqlite:///chat.db chat.jsonl --yes
      chatlock export --url sqlite:///chat.db --undo --yes
    """
    if undo == (file is not None):
        raise click.UsageError("give a file to write, or --undo")
    if not yes:
        raise click.UsageError("this changes who may write to the store; add --yes to do it")
    with context.executor() as executor:
        if file is None:
            undo_export(executor)
            context.show("the store takes writes again", undone=True)
            return
        try:
            moved = export_store(executor, file, force=force, progress=_show_progress)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise Refused(f"{visible(str(file))} cannot be written ({reason}); {MARKED}") from None
    text = f"{_counted(moved)} are in {visible(str(file))}; the store takes no writes any more"
    context.show(text, file=str(file), rows=moved.rows)


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@with_database
def import_command(context: Context, file: Path) -> None:
    """Write an export into an empty database, and verify it, in one transaction.

    Messages, ids, tokens, dispositions and replies are kept; turns that ran are released. If it is
    cut short, nothing was written: run it again. Make the tables first, by `chatlock db upgrade`.

    \b
    Example:
      chatlock import --url postgresql://app@db/app chat.jsonl
    """
    with context.executor() as executor:
        moved = import_store(executor, file, progress=_show_progress)
    text = "this export had been imported already" if moved.already else f"imported {_counted(moved)}; all is verified"
    context.show(text, rows=moved.rows, released=moved.released, already=moved.already)


def _counted(moved: Moved) -> str:
    words = (counted(moved.rows[f"{name}s"], name, f"{name}s") for name in ("thread", "message", "turn"))
    return "{}, {} and {}".format(*words)


def _show_progress(table: str, rows: int) -> None:
    show_progress(f"{table}: {counted(rows, 'row')}")
