"""What every command has: where the database is, how to print, and what an error's exit code is."""

from __future__ import annotations

import functools
import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chatlock.dialects import checked_url
from chatlock.errors import ChatlockError, InvalidInput, StoreUnavailable
from chatlock.executor import Executor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JSON_VERSION = 1


@dataclass(frozen=True)
class Context:
    """One command's database and output."""

    url: str
    as_json: bool

    @contextmanager
    def executor(self, *, create: bool = False) -> Iterator[Executor]:
        """The database, closed at the end; a missing SQLite file is made only with `create`."""
        url = checked_url(self.url)
        name = url.database or ""
        on_file = url.get_backend_name() == "sqlite" and not name.startswith("file:")
        if on_file and not create and not Path(name).exists():
            raise StoreUnavailable("there is no such SQLite file; `chatlock db upgrade` makes it")
        executor = Executor(url, pool_size=1, pooler=None)
        try:
            yield executor
        finally:
            executor.close()

    def show(self, text: str, **facts: Any) -> None:
        """Print the text or, with --json, the facts as one object on one line."""
        if self.as_json:
            text = json.dumps({"schema_version": JSON_VERSION, **facts})
        click.echo(text)


def with_database(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command --url and --json, and calls it with a Context first."""

    @click.option(
        "--url",
        envvar="CHATLOCK_URL",
        required=True,
        help="The database as a SQLAlchemy URL; else CHATLOCK_URL.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
    @functools.wraps(command)
    def wrapped(*args: Any, url: str, as_json: bool, **kwargs: Any) -> None:
        command(Context(url, as_json), *args, **kwargs)

    return wrapped


class Unreachable(click.ClickException):
    """The database cannot serve this now."""

    exit_code = 5


class Commands(click.Group):
    """A group whose commands end with one line and an exit code instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; chatlock's own errors never hold the database's URL."""
        try:
            return super().invoke(ctx)
        except InvalidInput as error:
            raise click.UsageError(str(error)) from None
        except StoreUnavailable as error:
            raise Unreachable(str(error)) from None
        except ChatlockError as error:
            raise click.ClickException(str(error)) from None
