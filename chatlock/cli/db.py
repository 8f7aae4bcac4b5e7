"""`chatlock db`: the tables, and what an operator does to the database as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chatlock import migrations
from chatlock.cli.context import Context, with_database
from chatlock.cli.output import duration, show_progress
from chatlock.epoch import bump_epoch
from chatlock.protocol import Limits
from chatlock.wording import counted

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


@click.group()
def db() -> None:
    """Make, check and upgrade chatlock's tables.

    \b
    Examples:
      chatlock db upgrade --url sqlite:///chat.db
      CHATLOCK_URL=postgresql://app@db/app chatlock db check
      chatlock db sql --dialect postgresql > chatlock.sql
    """


@db.command()
@click.option("--to", default="head", metavar="REVISION", help="Where to stop; else the newest.")
@with_database
def upgrade(context: Context, to: str) -> None:
    """Bring the tables to the newest revision.

    Safe to run anywhere and at any time: of several at once one does the work and the others wait,
    and one that is cut short leaves nothing behind.

    \b
    Examples:
      chatlock db upgrade --url sqlite:///chat.db
      chatlock db upgrade --url postgresql://app@db/app --to 1
    """

    seen: list[int | None] = []

    def run(conn: Connection) -> None:
        before = migrations.current(conn)
        migrations.upgrade(conn, to)
        seen[:] = [before, migrations.current(conn)]

    with context.executor(create=True) as executor:
        executor.set_up(run)
    before, now = seen
    done = "already at" if before == now else "upgraded to"
    context.show(f"chatlock tables {done} revision {now}", before=before, revision=now)


@db.command()
@with_database
def check(context: Context) -> None:
    """Verify that this chatlock may work on the tables; nothing is written.

    Exit code 1 says that they are missing, older or too new, and what to do.

    \b
    Example:
      chatlock db check --url sqlite:///chat.db
    """
    with context.executor() as executor:
        revision = executor.read("check", migrations.current)
    context.show(f"chatlock tables at revision {revision}: ok", revision=revision)


@db.command()
@click.option(
    "--dialect",
    required=True,
    type=click.Choice(list(migrations.SERVER_NAMES)),
    help="The kind of database.",
)
@click.option("--from", "from_", metavar="REVISION", help="Where the database is; else it is empty.")
@click.option("--to", default="head", metavar="REVISION", help="Where to stop; else the newest.")
def sql(dialect: str, from_: str | None, to: str) -> None:
    """Print the SQL of an upgrade, for whoever runs it by hand or in another tool.

    It is one transaction. No database is touched.

    \b
    Examples:
      chatlock db sql --dialect postgresql | psql -v ON_ERROR_STOP=1 app
      chatlock db sql --dialect sqlite | sqlite3 -bail chat.db
      chatlock db sql --dialect postgresql --from 1
    """
    click.echo(migrations.sql(dialect, from_, to), nl=False)


@db.command(name="bump-epoch")
@click.option("--yes", is_flag=True, help="Required: every running turn loses its claim.")
@click.option("--reason", default="failover", show_default=True, help="For the audit row.")
@click.option("--actor", help="For the audit row; else the user who runs this.")
@with_database
def bump(context: Context, yes: bool, reason: str, actor: str | None) -> None:
    """Raise every token, after a failover that lost acknowledged commits.

    A standby that missed the last commits would give out the same tokens again, and two turns could
    pass the same fence. Run this once on the new primary before the application returns. Running
    turns are released, their messages are due again. If it is cut short, run it again.

    \b
    Example:
      chatlock db bump-epoch --url postgresql://app@db/app --yes --reason "failover to db2"
    """
    if not yes:
        raise click.UsageError("this releases every running turn; add --yes to do it")
    with context.executor() as executor:
        bumped = bump_epoch(
            executor,
            actor=actor,
            reason=reason,
            limits=Limits(),
            progress=_show_progress,
        )
    text = f"epoch {bumped.epoch} began; the tokens of {counted(bumped.threads, 'thread')} were raised"
    context.show(text, epoch=bumped.epoch, threads=bumped.threads)


@db.command()
@click.option("--older", type=duration, required=True, help="Only what ended so long ago.")
@click.option("--yes", is_flag=True, help="Required: what is forgotten is gone.")
@with_database
def purge(context: Context, older: int, yes: bool) -> None:
    """Forget payloads, replies and unanswered turns of all tenants; ids and dispositions stay.

    In bounded transactions; if it is cut short, run it again. Space in the file or tables is used
    anew; to give it back to the disk is the database's VACUUM.

    \b
    Example:
      chatlock db purge --url postgresql://app@db/app --older 90d --yes
    """
    if not yes:
        raise click.UsageError("what is forgotten is gone; add --yes to do it")
    with context.chat() as chat:
        changed = chat.purge(older_than_ms=older)
    context.show(f"forgot payloads, replies and turns in {counted(changed, 'row')}", changed=changed)


def _show_progress(done: int, of: int) -> None:
    show_progress(f"{done} of {counted(of, 'thread')}")
