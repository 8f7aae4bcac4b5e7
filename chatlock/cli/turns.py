"""`chatlock turns`, `intents` and `audit`: what ran, what it set out to do elsewhere, and what operators did."""

from __future__ import annotations

import click

from chatlock.cli.context import (
    Context,
    RaceLost,
    Refused,
    with_act,
    with_limit,
    with_payloads,
    with_scope,
    with_tenant,
)
from chatlock.cli.facts import (
    AUDIT_HEADER,
    INTENT_HEADER,
    TURN_HEADER,
    audit_line,
    intent_facts,
    intent_line,
    turn_line,
)
from chatlock.cli.messages import with_since
from chatlock.cli.output import visible
from chatlock.protocol import TurnState

INTENT_STATES = ("pending", "leased", "sent", "failed", "expired", "cancelled")


@click.group()
def turns() -> None:
    """Turns, by how they ended.

    \b
    Example:
      chatlock turns ls --tenant acme t1
    """


@turns.command("ls")
@click.argument("thread", required=False)
@click.option("--state", type=click.Choice([state.value for state in TurnState]), help="Only this state.")
@with_since
@with_payloads
@with_limit
@with_scope
def list_turns(context: Context, thread: str | None, state: str | None, since: int, payloads: bool, limit: int) -> None:
    """List the turns that ended lately, or all that are kept of one thread; the latest first.

    \b
    Examples:
      chatlock turns ls --tenant acme t1
      chatlock turns ls --all-tenants --state reclaimed --since 1h
    """
    if thread is None and state == TurnState.RUNNING:
        raise click.UsageError("running turns are in `chatlock threads ls --status running`, or name a thread")
    with context.console() as console:
        found = console.turns(context.scope(thread), since, limit, state=state, payloads=payloads)
    lines = [turn_line(turn, all_tenants=context.all_tenants, payloads=payloads) for turn in found]
    context.show_lines(TURN_HEADER, lines, "no turn matches")


@click.group()
def intents() -> None:
    """Intents: replies that are to be sent, and other effects outside the database.

    \b
    Examples:
      chatlock intents ls --tenant acme --state failed
      chatlock intents retry --tenant acme t1 --turn 7 --reason "Slack is back"
    """


@intents.command("ls")
@click.argument("thread", required=False)
@click.option("--state", type=click.Choice(INTENT_STATES), help="Only this state.")
@with_payloads
@with_limit
@with_scope
def list_intents(context: Context, thread: str | None, state: str | None, payloads: bool, limit: int) -> None:
    """List intents, the latest first.

    \b
    Examples:
      chatlock intents ls --tenant acme t1
      chatlock intents ls --all-tenants --state failed --json
    """
    with context.console() as console:
        found = console.intents(context.scope(thread), limit, state=state, payloads=payloads)
    lines = [intent_line(intent, all_tenants=context.all_tenants, payloads=payloads) for intent in found]
    context.show_lines(INTENT_HEADER, lines, "no intent matches")


with_turn = click.option("--turn", type=click.IntRange(1), required=True, help="The token of the turn that wrote it.")
with_name = click.option("--name", default="reply", show_default=True, help="Its name within the turn.")


@intents.command("show")
@click.argument("thread")
@with_turn
@with_name
@with_payloads
@with_tenant
def show_intent(context: Context, thread: str, turn: int, name: str, payloads: bool) -> None:
    """Show one intent.

    \b
    Example:
      chatlock intents show --tenant acme t1 --turn 7
    """
    with context.console() as console:
        intent = console.intent(context.key(thread), turn, name, payloads=payloads)
    if intent is None:
        raise _no_such_intent(thread, turn, name)
    context.show_facts(intent_facts(intent, payloads=payloads))


@intents.command()
@click.argument("thread")
@with_turn
@with_name
@with_act
@with_tenant
def retry(context: Context, thread: str, turn: int, name: str, actor: str | None, reason: str) -> None:
    """Put a failed intent back into service; it is tried again at once, flagged as maybe a duplicate.

    \b
    Example:
      chatlock intents retry --tenant acme t1 --turn 7 --reason "Slack is back"
    """
    with context.console() as console:
        receipt = console.retry_intent(context.key(thread), turn, name, actor=actor, reason=reason)
    text = f"{visible(name)} of turn {turn} is pending again"
    if receipt.done or context.as_json:
        context.show(text, done=receipt.done, reason=receipt.reason, state=receipt.state)
    if receipt.reason == "not_found":
        raise _no_such_intent(thread, turn, name)
    if not receipt.done:
        raise RaceLost(f"{visible(name)} of turn {turn} is not failed: it is {receipt.state}")


@click.command()
@click.argument("thread", required=False)
@with_since
@with_limit
@with_scope
def audit(context: Context, thread: str | None, since: int, limit: int) -> None:
    """List what operators did, the latest first. With --all-tenants also what concerned the whole database.

    \b
    Examples:
      chatlock audit --tenant acme t1
      chatlock audit --all-tenants --since 1d --json
    """
    with context.console() as console:
        found = console.audit(context.scope(thread), since, limit)
    context.show_lines(AUDIT_HEADER, [audit_line(row, all_tenants=context.all_tenants) for row in found], "no act")


def _no_such_intent(thread: str, turn: int, name: str) -> Refused:
    return Refused(f"turn {turn} of thread {visible(thread)} of this tenant has no intent {visible(name)}")
