"""What every command has: the database, whose threads, how to print, and what an error's exit code is."""

from __future__ import annotations

import functools
import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import click
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from chatlock.cli.output import echo, print_table, visible
from chatlock.client import Chatlock
from chatlock.console import Console, Scope
from chatlock.errors import ChatlockError, InvalidInput, LoginRefused, StoreUnavailable
from chatlock.executor import Executor
from chatlock.inputs import Key, checked_id, checked_key
from chatlock.urls import checked_url, existing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sqlalchemy.engine import URL

    from chatlock.cli.facts import Line
    from chatlock.options import ClientOptions

JSON_VERSION = 1
POOL_SIZE = 2
REFUSED, MISUSE, STUCK, RACE_LOST, UNREACHABLE = 1, 2, 3, 4, 5
"""Exit codes beside 0, which says that all is well."""


@dataclass(frozen=True)
class Context:
    """One command's database, tenant (None: not asked for, or all) and output."""

    url: str
    as_json: bool
    pooler: Literal["transaction"] | None = None
    tenant: str | None = None

    def key(self, thread: str) -> Key:
        """The key of one of the tenant's threads."""
        return checked_key(self.tenant, thread)

    def scope(self, thread: str | None = None) -> Scope:
        """One thread of the tenant, or all; tenant None: every tenant's."""
        if thread is not None:
            key = self.key(thread)
            return Scope(key.tenant, key.thread)
        return Scope(None if self.tenant is None else checked_id(self.tenant, "tenant"))

    def checked_url(self, *, create: bool = False) -> URL:
        """The database's URL; a missing SQLite file is refused unless it may be made."""
        url = checked_url(self.url)
        return url if create else existing(url)

    @contextmanager
    def executor(self, *, create: bool = False) -> Iterator[Executor]:
        """The database, closed at the end; a missing SQLite file is made only with `create`."""
        executor = Executor(self.checked_url(create=create), pool_size=POOL_SIZE, pooler=self.pooler)
        try:
            yield executor
        finally:
            executor.close()

    @contextmanager
    def console(self) -> Iterator[Console]:
        """What operators read, and what they do beside the client's methods."""
        with self.executor() as executor:
            yield Console(executor)

    @contextmanager
    def chat(self) -> Iterator[Chatlock]:
        """The client, for its public methods; it runs no turns."""
        options: ClientOptions = {"tenant": self.tenant, "poller": False, "pool_size": POOL_SIZE, "pooler": self.pooler}
        with Chatlock(self.checked_url(), **options) as chat:
            yield chat

    def show(self, text: str, /, **facts: Any) -> None:
        """Print the text or, with --json, the facts as one object on one line."""
        if self.as_json:
            text = json.dumps({"schema_version": JSON_VERSION, **facts})
        echo(text)

    def show_facts(self, facts: dict[str, Any]) -> None:
        """Print one thing: a line for each fact or, with --json, one object."""
        if self.as_json:
            self.show("", **facts)
            return
        width = max(map(len, facts)) + 2
        for name, value in facts.items():
            if value is not None:
                echo(f"{name:<{width}}{visible(value if isinstance(value, str) else json.dumps(value))}")

    @property
    def all_tenants(self) -> bool:
        """Whether lists have to say whose each thread is."""
        return self.tenant is None

    def show_lines(self, header: Sequence[str], lines: Iterable[Line], empty: str) -> None:
        """Print a table (or, without a line, `empty` to stderr) or, with --json, each line's facts as one object."""
        if not self.all_tenants:
            header = [name for name in header if name != "TENANT"]
        if self.as_json:
            for line in lines:
                self.show("", **line.facts)
            return
        rows = [line.cells for line in lines]
        if rows:
            print_table(header, rows)
        else:
            echo(empty, err=True)


def with_database(command: Callable[..., None], *, unless: str | None = None) -> Callable[..., None]:
    """Gives a command --url and --json, and calls it with a Context first.

    unless: an argument of the command that takes the database's place where it is given.
    """

    @click.option(
        "--url",
        envvar="CHATLOCK_URL",
        required=unless is None,
        callback=without_password,
        help="The database as a SQLAlchemy URL; else CHATLOCK_URL, which no list of processes shows.",
    )
    @click.option(
        "--pooler",
        envvar="CHATLOCK_POOLER",
        type=click.Choice(["transaction"]),
        help="Behind a transaction pooler; else CHATLOCK_POOLER.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
    @functools.wraps(command)
    def wrapped(
        *args: Any, url: str | None, as_json: bool, pooler: Literal["transaction"] | None, **kwargs: Any
    ) -> None:
        if url is None and not _given(unless, kwargs):
            raise click.UsageError(f"give {(unless or '').upper()}, or a database by --url or CHATLOCK_URL")
        command(Context(url or "", as_json, pooler), *args, **kwargs)

    return wrapped


def _given(argument: str | None, kwargs: dict[str, Any]) -> bool:
    return argument is not None and kwargs[argument] is not None


def without_password(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The value of an option that takes a URL.  With a password it is taken from the environment alone."""
    by_argument = ctx.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
    if value is not None and by_argument and _holds_password(value):
        name = f"CHATLOCK_{(param.name or '').upper()}"
        raise click.UsageError(f"everyone on this machine sees an argument: give a URL with a password in {name}")
    return value


def _holds_password(text: str) -> bool:
    """Whether a URL has a password, before the host or among the parameters (`password`, `sslpassword`)."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # refused where it is used
        return False
    return url.password is not None or any("password" in name for name in url.query)


def with_tenant(command: Callable[..., None]) -> Callable[..., None]:
    """As with_database, with --tenant, which is required."""

    @click.option("--tenant", envvar="CHATLOCK_TENANT", required=True, help="Whose threads; else CHATLOCK_TENANT.")
    @with_database
    @functools.wraps(command)
    def wrapped(context: Context, *args: Any, tenant: str, **kwargs: Any) -> None:
        command(replace(context, tenant=tenant), *args, **kwargs)

    return wrapped


def with_scope(command: Callable[..., None], *, unless: str | None = None) -> Callable[..., None]:
    """As with_database, with --tenant or --all-tenants; one of them is required where a database is."""

    @click.option("--tenant", envvar="CHATLOCK_TENANT", help="Whose threads; else CHATLOCK_TENANT.")
    @click.option("--all-tenants", is_flag=True, help="Every tenant's.")
    @functools.partial(with_database, unless=unless)
    @functools.wraps(command)
    def wrapped(context: Context, *args: Any, tenant: str | None, all_tenants: bool, **kwargs: Any) -> None:
        source = click.get_current_context().get_parameter_source("tenant")
        if all_tenants and source is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("give --tenant or --all-tenants, not both")
        if not all_tenants and tenant is None and not _given(unless, kwargs):
            raise click.UsageError("say whose threads: --tenant, CHATLOCK_TENANT or --all-tenants")
        command(replace(context, tenant=None if all_tenants else tenant), *args, **kwargs)

    return wrapped


with_payloads = click.option(
    "--payloads", is_flag=True, help="Show payloads and replies, which are people's own words."
)
with_limit = click.option(
    "--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most so many lines."
)


def with_act(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command --reason and --actor, for the audit row."""
    reason = click.option("--reason", required=True, help="Why, for the audit row.")
    actor = click.option("--actor", help="Who, for the audit row; else the user who runs this.")
    return reason(actor(command))


class Refused(click.ClickException):
    """Refused, or a check failed."""

    exit_code = REFUSED


class WrongDatabase(click.ClickException):
    """The database that was named lets nobody in so, or is not there."""

    exit_code = MISUSE


class RaceLost(click.ClickException):
    """Someone was faster: the thread is not any more as the operator saw it."""

    exit_code = RACE_LOST


class Unreachable(click.ClickException):
    """The database cannot serve this now."""

    exit_code = UNREACHABLE


def no_such_thread(thread: str) -> Refused:
    """The same for one that never was and for another tenant's."""
    return Refused(f"there is no thread {visible(thread)} of this tenant")


class Commands(click.Group):
    """A group whose commands end with one line and an exit code instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; chatlock's own errors never hold the database's URL."""
        try:
            return super().invoke(ctx)
        except InvalidInput as error:
            raise click.UsageError(visible(str(error))) from None
        except LoginRefused as error:
            raise WrongDatabase(visible(str(error))) from None
        except StoreUnavailable as error:
            raise Unreachable(visible(str(error))) from None
        except ChatlockError as error:
            raise Refused(visible(str(error))) from None
