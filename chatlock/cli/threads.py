"""`chatlock threads`, `why` and `cancel`: see threads, understand them, free and stop them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from chatlock.cli.context import (
    STUCK,
    Context,
    RaceLost,
    Refused,
    no_such_thread,
    with_act,
    with_limit,
    with_payloads,
    with_scope,
    with_tenant,
)
from chatlock.cli.facts import (
    MESSAGE_HEADER,
    STUCK_HEADER,
    THREAD_HEADER,
    TURN_HEADER,
    message_line,
    stuck_line,
    thread_facts,
    thread_line,
    turn_line,
    view_facts,
    why_facts,
    why_text,
)
from chatlock.cli.output import duration, echo, shell_quoted, visible
from chatlock.console import STUCK_MS, Page
from chatlock.inputs import Key
from chatlock.policies import BACKLOGS, Backlog
from chatlock.protocol import Cancelled, Status
from chatlock.wording import counted, span

if TYPE_CHECKING:
    from chatlock import Receipt
    from chatlock.console import ThreadReport, ThreadView

RACES = ("other_turn", "not_running", "not_parked")
STATUSES = [status.value for status in Status if status is not Status.ABSENT]


@click.group()
def threads() -> None:
    """List threads, look into one, free, park and resume.

    \b
    Examples:
      chatlock threads ls --tenant acme --status running
      chatlock threads ls --all-tenants --stuck --older 5m
      chatlock threads show --tenant acme t1
      chatlock threads free --tenant acme t1 --turn 7 --reason "hangs in the crawler"
    """


@threads.command()
@click.option("--stuck", is_flag=True, help="Those that should have moved and did not; exit code 3 if there are any.")
@click.option("--older", type=duration, help="With --stuck: for at least so long.  [default: 30s]")
@click.option("--status", type=click.Choice(STATUSES), help="Only this status.")
@click.option("--agent", help="Only this agent.")
@click.option("--after", help="Go on behind this thread, the last one of the list before.")
@with_limit
@with_scope
def ls(
    context: Context,
    stuck: bool,
    older: int | None,
    status: str | None,
    agent: str | None,
    after: str | None,
    limit: int,
) -> None:
    """List threads by name, or the stuck ones, longest first.

    Stuck is a turn past its lease that no sweep has freed, and a thread that is due and that no one
    takes. Both are found by an index, however many threads there are.

    \b
    Examples:
      chatlock threads ls --tenant acme --status parked
      chatlock threads ls --all-tenants --stuck --older 5m
      chatlock threads ls --tenant acme --limit 1000 --after t1 --json
    """
    if stuck and (status or after):
        raise click.UsageError("--stuck takes no --status and no --after")
    if older is not None and not stuck:
        raise click.UsageError("--older goes with --stuck")
    if after is not None and context.all_tenants:
        raise click.UsageError("--after needs --tenant")
    with context.console() as console:
        if stuck:
            older_ms = STUCK_MS if older is None else older
            found = console.stuck(context.scope(), older_ms, limit, agent=agent)
            lines = [stuck_line(one, all_tenants=context.all_tenants) for one in found]
            context.show_lines(STUCK_HEADER, lines, f"no thread is stuck for {span(older_ms)} or more")
            if found:
                click.get_current_context().exit(STUCK)
            return
        page = Page(limit, Key(context.tenant or "", after or ""))
        rows = console.threads(context.scope(), page, status=status, agent=agent)
    lines = [thread_line(row, all_tenants=context.all_tenants) for row in rows]
    context.show_lines(THREAD_HEADER, lines, "no thread matches")
    if len(rows) == limit and not context.all_tenants:
        echo(f"there may be more: add --after {shell_quoted(rows[-1].thread_id)}", err=True)


@threads.command()
@click.argument("thread")
@with_payloads
@with_tenant
def show(context: Context, thread: str, payloads: bool) -> None:
    """Show one thread, why it is so, its pending messages and its last turns.

    \b
    Examples:
      chatlock threads show --tenant acme t1
      chatlock threads show --tenant acme t1 --payloads --json
    """
    with context.console() as console:
        view = console.thread(context.key(thread), payloads=payloads)
    if view is None:
        raise no_such_thread(thread)
    context.show(visible(why_text(view.thread, view.why)), **view_facts(view, payloads=payloads))
    if not context.as_json:
        _show_contents(context, view, payloads)


def _show_contents(context: Context, view: ThreadView, payloads: bool) -> None:
    context.show_facts(thread_facts(view.thread))
    if view.messages:
        echo("\npending messages")
        lines = [message_line(message, all_tenants=False, payloads=payloads) for message in view.messages]
        context.show_lines(MESSAGE_HEADER, lines, "")
    if view.turns:
        echo("\nlast turns")
        context.show_lines(TURN_HEADER, [turn_line(t, all_tenants=False, payloads=payloads) for t in view.turns], "")


@click.command()
@click.argument("thread")
@with_tenant
def why(context: Context, thread: str) -> None:
    """Say in one line why a thread is as it is, how that ends by itself, and what to do now.

    \b
    Example:
      chatlock why --tenant acme t1
    """
    with context.console() as console:
        found = console.why(context.key(thread))
    if found is None:
        raise no_such_thread(thread)
    context.show(visible(why_text(*found)), **thread_facts(found[0]), **why_facts(*found))


@threads.command()
@click.argument("thread")
@click.option("--turn", type=click.IntRange(1), required=True, help="The token of the turn that you saw.")
@click.option("--force", is_flag=True, help="Although its holder lives: it can then commit nothing more.")
@click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")
@with_act
@with_tenant
def free(context: Context, thread: str, turn: int, force: bool, dry_run: bool, actor: str | None, reason: str) -> None:
    """End a turn by its token: a stale one, or with --force a live one.

    The token rises, so whatever the old holder still tries to commit is refused. Its messages are
    pending again. Exit code 1: the holder lives; 4: that turn does not run any more.

    \b
    Examples:
      chatlock threads free --tenant acme t1 --turn 7 --reason "worker 3 is gone"
      chatlock threads free --tenant acme t1 --turn 7 --force --reason "runs away" --dry-run
    """
    with context.console() as console:
        freed = console.free(context.key(thread), turn, force=force, actor=actor, reason=reason, dry_run=dry_run)
    receipt, after = freed.receipt, freed.thread
    name = visible(thread)
    done = f"{'would free' if dry_run else 'freed'} turn {turn} of {name}"
    facts = None if after is None else thread_facts(after)
    if receipt.done and after is not None:
        done = f"{done}; it is {after.status} now, its token {after.token}, {counted(after.pending, 'message')} pending"
    _tell(context, receipt, name, done, _holder(after), dry_run=dry_run, thread=facts)


@threads.command()
@click.argument("thread")
@click.option("--turn", type=click.IntRange(1), help="The token of its running turn, which is then fenced out.")
@with_act
@with_tenant
def park(context: Context, thread: str, turn: int | None, actor: str | None, reason: str) -> None:
    """Take a thread out of automatic service; messages are stored and wait.

    A running turn must be named by its token: it is released and can commit nothing more.

    \b
    Examples:
      chatlock threads park --tenant acme t1 --reason "customer complained"
      chatlock threads park --tenant acme t1 --turn 7 --reason "runs away"
    """
    with context.chat() as chat:
        receipt = chat.park(thread, turn=turn, actor=actor, reason=reason)
    _tell(context, receipt, visible(thread), f"parked {visible(thread)}", "a turn runs: name it with --turn")


@threads.command()
@click.argument("thread")
@with_act
@with_tenant
def resume(context: Context, thread: str, actor: str | None, reason: str) -> None:
    """Put a parked thread back into service, due at once, with attempts, stalls and backoff cleared.

    \b
    Example:
      chatlock threads resume --tenant acme t1 --reason "fixed in 1.4.2"
    """
    with context.chat() as chat:
        receipt = chat.resume(thread, actor=actor, reason=reason)
    _tell(context, receipt, visible(thread), f"resumed {visible(thread)}", "it is not parked")


@click.command()
@click.argument("thread")
@click.argument("message_id", required=False)
@click.option("--turn", type=click.IntRange(1), help="Ask the turn with this token to stop.")
@click.option("--queued", type=click.Choice(list(BACKLOGS)), help="What becomes of its messages and those behind them.")
@with_tenant
def cancel(context: Context, thread: str, message_id: str | None, turn: int | None, queued: Backlog | None) -> None:
    """Resolve one pending message as cancelled, or ask a turn to stop.

    A message that a turn has in hand is refused. A turn that finishes anyway is answered; one that has not ended after
    10 s is released by force. Its messages and those behind them stay pending (keep, the default), are cancelled
    (cancel), or stay pending in a thread that is then parked (park). Exit code 4: that turn does not run any more.

    \b
    Examples:
      chatlock cancel --tenant acme t1 m2
      chatlock cancel --tenant acme t1 --turn 7 --queued cancel
    """
    if (message_id is None) == (turn is None) or (queued is not None and turn is None):
        raise click.UsageError("name a message, or a turn by --turn and what becomes of its messages by --queued")
    if turn is not None:
        _stop(context, thread, turn, queued or "keep")
        return
    assert message_id is not None
    with context.chat() as chat:
        outcome = chat.cancel(thread, message_id)
    name, word = visible(message_id), type(outcome).__name__
    done = isinstance(outcome, Cancelled)
    if done or context.as_json:
        context.show(f"cancelled {name}", message_id=message_id, seq=outcome.seq, outcome=word, done=done)
    if not done:
        why = getattr(outcome, "reason", None) or f"its outcome is {word}"
        raise Refused(f"{name} is not cancelled: {why.replace('_', ' ')}")


def _stop(context: Context, thread: str, turn: int, queued: Backlog) -> None:
    with context.chat() as chat:
        receipt = chat.cancel(thread, turn=turn, queued=queued)
    name, facts = visible(thread), asdict(receipt)
    has = counted(len(receipt.held), "message")
    wait = counted(len(receipt.waiting), "waits", "wait")
    text = f"asked turn {turn} of {name} to stop; it has {has}, {wait}"
    if receipt.done or context.as_json:
        context.show(f"{text} ({queued})", thread=thread, **facts)
    if not receipt.done:
        raise RaceLost(f"{name}: refused ({receipt.reason.replace('_', ' ')})")


def _holder(thread: ThreadReport | None) -> str:
    if thread is None or thread.turn is None:
        return "no turn runs"
    age = span(thread.now - (thread.claimed_at or thread.now))
    return visible(f"turn {thread.turn} runs, held by {thread.owner or 'an unknown owner'} for {age}")


def _tell(context: Context, receipt: Receipt, name: str, done: str, detail: str, **facts: object) -> None:
    """Prints what became of an act; what was refused or came too late ends the command with its exit code."""
    if receipt.done or context.as_json:
        context.show(done, done=receipt.done, reason=receipt.reason, status=receipt.state, **facts)
    if receipt.done:
        return
    if receipt.state == Status.ABSENT:
        raise no_such_thread(name)
    error = RaceLost if receipt.reason in RACES else Refused
    raise error(f"{name}: refused ({receipt.reason.replace('_', ' ')}); {detail}")
