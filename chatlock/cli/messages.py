"""`chatlock inbox` and `chatlock dead`: pending messages, and those that were given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chatlock.cli.context import Context, Refused, with_limit, with_payloads, with_scope, with_tenant
from chatlock.cli.facts import (
    DEAD_HEADER,
    MESSAGE_HEADER,
    TURN_HEADER,
    dead_line,
    message_facts,
    message_line,
    turn_facts,
    turn_line,
)
from chatlock.cli.output import duration, visible
from chatlock.protocol import Cancelled, Disposition, Outcome
from chatlock.wording import counted

if TYPE_CHECKING:
    from chatlock import Chatlock

with_since = click.option(
    "--since", type=duration, default="7d", show_default=True, help="Only what ended in so long a time."
)


@click.group()
def inbox() -> None:
    """Pending messages: list them, look at one, drop some, put a thread's first.

    \b
    Examples:
      chatlock inbox ls --tenant acme t1
      chatlock inbox drop --tenant acme t1 m2 m3
    """


@inbox.command("ls")
@click.argument("thread", required=False)
@with_payloads
@with_limit
@with_scope
def list_inbox(context: Context, thread: str | None, payloads: bool, limit: int) -> None:
    """List pending messages, of one thread or of all.

    \b
    Examples:
      chatlock inbox ls --tenant acme t1
      chatlock inbox ls --all-tenants --limit 20 --json
    """
    with context.console() as console:
        found = console.inbox(context.scope(thread), limit, payloads=payloads)
    lines = [message_line(message, all_tenants=context.all_tenants, payloads=payloads) for message in found]
    context.show_lines(MESSAGE_HEADER, lines, "no message is pending")


@inbox.command("show")
@click.argument("thread")
@click.argument("message_id")
@with_payloads
@with_tenant
def show_message(context: Context, thread: str, message_id: str, payloads: bool) -> None:
    """Show one message, pending or resolved.

    \b
    Example:
      chatlock inbox show --tenant acme t1 m2 --payloads
    """
    with context.console() as console:
        message = console.message(context.key(thread), message_id, payloads=payloads)
    if message is None:
        raise _no_such_message(thread, message_id)
    context.show_facts(message_facts(message, payloads=payloads))


@inbox.command()
@click.argument("thread")
@click.argument("message_ids", nargs=-1)
@click.option("--all", "whole", is_flag=True, help="Every pending message of the thread.")
@click.option("--yes", is_flag=True, help="Required with --all.")
@with_limit
@with_tenant
def drop(context: Context, thread: str, message_ids: tuple[str, ...], whole: bool, yes: bool, limit: int) -> None:
    """Resolve pending messages as cancelled; what a turn has in hand is refused and stays.

    \b
    Examples:
      chatlock inbox drop --tenant acme t1 m2 m3
      chatlock inbox drop --tenant acme t1 --all --yes
    """
    if whole == bool(message_ids):
        raise click.UsageError("name messages, or all of them by --all")
    if whole and not yes:
        raise click.UsageError("this drops every pending message of the thread; add --yes to do it")
    if whole:
        with context.console() as console:
            message_ids = tuple(message.message_id for message in console.inbox(context.scope(thread), limit))
    with context.chat() as chat:
        refused = [name for name in message_ids if not _dropped(context, chat, thread, name)]
    if refused:
        raise Refused(f"{len(refused)} of {counted(len(message_ids), 'message')} not dropped")


@inbox.command()
@click.argument("thread")
@with_tenant
def promote(context: Context, thread: str) -> None:
    """Put a thread with pending messages among the first that pollers take, and end its quiet time.

    The order inside the thread and a backoff after a failure stay.

    \b
    Example:
      chatlock inbox promote --tenant acme t1
    """
    with context.chat() as chat:
        receipt = chat.promote(thread)
    if not receipt.done:
        raise Refused(f"{visible(thread)}: refused ({receipt.reason.replace('_', ' ')})")
    context.show(f"{visible(thread)} is among the first", thread=thread, done=True, status=receipt.state)


@click.group()
def dead() -> None:
    """Messages that were given up after their attempts: list, look, send again, forget.

    \b
    Examples:
      chatlock dead ls --tenant acme
      chatlock dead redrive --tenant acme t1 m1
    """


@dead.command("ls")
@click.argument("thread", required=False)
@with_since
@with_payloads
@with_limit
@with_scope
def list_dead(context: Context, thread: str | None, since: int, payloads: bool, limit: int) -> None:
    """List dead messages, the latest first.

    \b
    Examples:
      chatlock dead ls --tenant acme --since 1d
      chatlock dead ls --all-tenants --json
    """
    with context.console() as console:
        found = console.dead(context.scope(thread), since, limit, payloads=payloads)
    lines = [dead_line(message, all_tenants=context.all_tenants, payloads=payloads) for message in found]
    context.show_lines(DEAD_HEADER, lines, "no message is dead")


@dead.command("show")
@click.argument("thread")
@click.argument("message_id")
@with_payloads
@with_tenant
def show_dead(context: Context, thread: str, message_id: str, payloads: bool) -> None:
    """Show a dead message and the turns that tried it.

    \b
    Example:
      chatlock dead show --tenant acme t1 m1
    """
    with context.console() as console:
        message = console.message(context.key(thread), message_id, payloads=payloads)
        if message is None:
            raise _no_such_message(thread, message_id)
        if message.disposition != Disposition.DEAD:
            raise Refused(f"{visible(message_id)} is not dead: it is {message.disposition}")
        tried = console.attempts(message, payloads=payloads)
    if context.as_json:
        attempts = [turn_facts(turn, payloads=payloads) for turn in tried]
        context.show("", **message_facts(message, payloads=payloads), attempts=attempts)
        return
    context.show_facts(message_facts(message, payloads=payloads))
    context.show_lines(TURN_HEADER, [turn_line(turn, all_tenants=False, payloads=payloads) for turn in tried], "")


@dead.command()
@click.argument("thread", required=False)
@click.argument("message_id", required=False)
@click.option("--all", "whole", is_flag=True, help="All dead messages of the thread, or of the tenant.")
@click.option("--yes", is_flag=True, help="Required with --all.")
@with_since
@with_limit
@with_tenant
def redrive(
    context: Context,
    thread: str | None,
    message_id: str | None,
    whole: bool,
    yes: bool,
    since: int,
    limit: int,
) -> None:
    """Send a dead message again, as a new message that names it. Doing it twice sends it once.

    \b
    Examples:
      chatlock dead redrive --tenant acme t1 m1
      chatlock dead redrive --tenant acme --all --since 2h --yes
    """
    if whole == (message_id is not None):
        raise click.UsageError("name a thread and a message, or all of them by --all")
    if whole and not yes:
        raise click.UsageError("this sends all dead messages again; add --yes to do it")
    chosen = [(thread or "", message_id or "")]
    if whole:
        with context.console() as console:
            found = console.dead(context.scope(thread), since, limit)
        chosen = [(message.thread_id, message.message_id) for message in found]
    with context.chat() as chat:
        refused = [name for of, name in chosen if not _redriven(context, chat, of, name)]
    if refused:
        raise Refused(f"{len(refused)} of {counted(len(chosen), 'message')} not sent again")


@dead.command()
@click.option("--older", type=duration, required=True, help="Only what was given up so long ago.")
@click.option("--yes", is_flag=True, help="Required: a purged message cannot be sent again.")
@with_limit
@with_tenant
def purge(context: Context, older: int, yes: bool, limit: int) -> None:
    """Forget the payloads of dead messages; their ids stay.

    \b
    Example:
      chatlock dead purge --tenant acme --older 30d --yes
    """
    if not yes:
        raise click.UsageError("a purged message cannot be sent again; add --yes to do it")
    with context.console() as console:
        purged = console.purge_dead(context.scope(), older, limit)
    context.show(f"forgot the payloads of {counted(purged, 'dead message')}", purged=purged)


def _dropped(context: Context, chat: Chatlock, thread: str, message_id: str) -> bool:
    outcome = chat.cancel(thread, message_id)
    return _told(context, message_id, outcome, "dropped", isinstance(outcome, Cancelled))


def _redriven(context: Context, chat: Chatlock, thread: str, message_id: str) -> bool:
    outcome = chat.redrive(thread, message_id)
    done = outcome.seq is not None and outcome.message_id != message_id  # the new message's, not the dead one's
    return _told(context, message_id, outcome, "sent again", done)


def _told(context: Context, message_id: str, outcome: Outcome, verb: str, done: bool) -> bool:
    word = type(outcome).__name__
    reason = getattr(outcome, "reason", word)
    text = f"{visible(message_id)} is {verb}" if done else f"{visible(message_id)} is not {verb}: {reason}"
    context.show(text, message_id=message_id, seq=outcome.seq, outcome=word, done=done)
    return done


def _no_such_message(thread: str, message_id: str) -> Refused:
    return Refused(f"thread {visible(thread)} of this tenant has no message {visible(message_id)}")
