"""`chatlock poller` and `chatlock worker`: the long-running processes, set by CHATLOCK_* variables and .env."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from chatlock.cli.context import without_password
from chatlock.errors import InvalidInput

if TYPE_CHECKING:
    from chatlock.settings import Settings

EXTRAS = {"rq": "redis", "redis": "redis", "psycopg": "postgres"}
RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class Misconfigured(click.ClickException):
    """The settings do not hold together; said in one line."""

    exit_code = 2


class SettingsCommand(click.Command):
    """A command whose help lists every setting with its variable and default."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The settings, read from their class."""
        from chatlock.settings import Settings

        rows = []
        for name, field in Settings.model_fields.items():
            default = "required" if field.is_required() else f"default: {_shown(field.default)}"
            rows.append((f"CHATLOCK_{name.upper()}", f"{field.description} [{default}]"))
        with formatter.section("Settings (environment variables, or the file .env)"):
            formatter.write_dl(rows)


@click.command(cls=SettingsCommand)
@click.option("--url", callback=without_password, help="The database as a SQLAlchemy URL; else CHATLOCK_URL.")
def poller(url: str | None) -> None:
    """Free stale turns and hand out due ones, until SIGTERM.

    Run as many as you like, on any machines. SIGTERM lets running turns end for CHATLOCK_DRAIN_MS
    and hands the others back; a second one hands them back at once.

    \b
    Examples:
      CHATLOCK_URL=postgresql://app@db/app CHATLOCK_CHAT=app:chat chatlock poller
      CHATLOCK_DISPATCH=rq CHATLOCK_REDIS_URL=redis://cache/0 chatlock poller
    """
    settings = _begin(url)

    def serve() -> None:
        from chatlock.service import Service

        Service(settings).run()

    _with_extras(serve)


@click.command(cls=SettingsCommand)
def worker() -> None:
    """Run the turns that `chatlock poller` dispatches over RQ, one at a time, until SIGTERM.

    Run as many as you need. A worker runs chatlock's own function and no other, whatever jobs are
    in the queue. SIGTERM lets the running turn end for CHATLOCK_DRAIN_MS, then hands it back.

    \b
    Example:
      CHATLOCK_CHAT=app:chat CHATLOCK_REDIS_URL=redis://cache/0 chatlock worker
    """
    settings = _begin()

    def serve() -> None:
        from chatlock.rq_jobs import work

        work(settings)

    _with_extras(serve)


def _begin(url: str | None = None) -> Settings:
    """Checked settings; logs go to stderr; modules of the working directory can be imported."""
    from pydantic import SecretStr, ValidationError

    from chatlock.settings import Settings

    handler = logging.StreamHandler()
    handler.setFormatter(FieldFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return Settings() if url is None else Settings(url=SecretStr(url))
    except ValidationError as error:
        raise Misconfigured("; ".join(map(_fault, error.errors(include_input=False)))) from None


def _shown(default: object) -> str:
    return "none" if default is None else str(default)


def _fault(error: Any) -> str:
    """One broken setting, without its value."""
    message = error["msg"].removeprefix("Value error, ")
    return f"CHATLOCK_{str(error['loc'][0]).upper()}: {message}" if error["loc"] else message


def _with_extras(serve: Callable[[], None]) -> None:
    try:
        serve()
    except InvalidInput as error:
        raise Misconfigured(str(error)) from None
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(error.name or "")
        if extra is None:
            raise
        raise Misconfigured(f"this needs {error.name}: install chatlock with its extra '{extra}'") from None


class FieldFormatter(logging.Formatter):
    """A line that ends with the record's fields, as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter; a value cannot break out of its line."""
        fields = {name: value for name, value in vars(record).items() if name not in RECORD_FIELDS}
        tail = "".join(f" {name}={_quoted(value)}" for name, value in fields.items())
        first, newline, rest = super().format(record).partition("\n")
        return f"{first}{tail}{newline}{rest}"


def _quoted(value: object) -> str:
    text = str(value)
    return text if text.isascii() and text.isprintable() and " " not in text else ascii(text)
