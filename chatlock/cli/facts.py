"""What the lines of the lists hold: facts for --json with stable names, and cells for people."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from chatlock.cli.output import command, rfc3339, shown_time
from chatlock.why import Cause, Why
from chatlock.wording import counted, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chatlock.console import (
        AuditReport,
        IntentReport,
        Load,
        MessageReport,
        Stuck,
        ThreadReport,
        ThreadView,
        Top,
        Tried,
        TurnReport,
        WindowReport,
    )


class Line(NamedTuple):
    """One line of a list, in both forms."""

    facts: dict[str, Any]
    cells: Sequence[str]


def value_of(text: str | None) -> Any:
    """The value of stored JSON."""
    return None if text is None else json.loads(text)


def whose(tenant: str, thread: str, *, all_tenants: bool) -> list[str]:
    """The cells that name a thread: its tenant only where several are listed."""
    return [tenant, thread] if all_tenants else [thread]


def thread_facts(thread: ThreadReport) -> dict[str, Any]:
    """A thread; `turn` is the running turn's token."""
    starts_at = max(thread.not_before, thread.quiet_until)
    return {
        "tenant": thread.tenant,
        "thread": thread.thread_id,
        "incarnation": thread.incarnation,
        "status": thread.status,
        "agent": thread.agent,
        "turn": thread.turn,
        "token": thread.token,
        "pending": thread.pending,
        "attempts": thread.attempts,
        "stalls": thread.stalls,
        "owner": thread.owner,
        "claimed_at": rfc3339(thread.claimed_at),
        "expires_at": rfc3339(thread.expires_at),
        "window_ends_at": rfc3339(thread.window_ends_at),
        "starts_at": rfc3339(starts_at) if starts_at > thread.now else None,
        "due_at": rfc3339(thread.due_at),
        "dispatched_until": rfc3339(thread.dispatched_until or None),
        "awaiting": thread.awaiting,
        "awaiting_rule": thread.awaiting_rule,
        "created_at": rfc3339(thread.created_at),
    }


THREAD_HEADER = ("TENANT", "THREAD", "STATUS", "AGENT", "PENDING", "TURN", "CLAIMED", "OWNER")


def thread_line(thread: ThreadReport, *, all_tenants: bool) -> Line:
    """A thread in a list."""
    cells = [
        *whose(thread.tenant, thread.thread_id, all_tenants=all_tenants),
        thread.status,
        thread.agent,
        str(thread.pending),
        "-" if thread.turn is None else str(thread.turn),
        "-" if thread.claimed_at is None or thread.turn is None else f"{span(thread.now - thread.claimed_at)} ago",
        thread.owner or "-",
    ]
    return Line(thread_facts(thread), cells)


def why_facts(thread: ThreadReport, why: Why) -> dict[str, Any]:
    """A cause, with the command that can be pasted."""
    return {
        "cause": why.cause.value,
        "text": why.text,
        "frees_by": why.frees_by,
        "frees_in_ms": why.frees_in_ms,
        "command": why_command(thread, why),
    }


def why_command(thread: ThreadReport, why: Why) -> str:
    """The command for now, with the tenant and thread where it is about them."""
    if not why.names_thread:
        return command(*why.command)
    return command(*why.command, "--tenant", thread.tenant, thread=thread.thread_id)


def why_frees(why: Why) -> str:
    """How it ends by itself, and what the command is for."""
    within = "" if why.frees_in_ms is None else f" in {span(why.frees_in_ms)}"
    frees = "does not free itself" if why.frees_by is None else f"frees itself {why.frees_by}{within}"
    if why.cause in (Cause.NOTHING_PENDING, Cause.DELETED):
        frees = "there is nothing to free"
    return f"{frees}; {'to end a turn that lives' if why.ends_live else 'now'}:"


def why_text(thread: ThreadReport, why: Why) -> str:
    """THREAD: cause; how it ends by itself, and the command for now."""
    return f"{thread.thread_id}: {why.cause.value} ({why.text}); {why_frees(why)} {why_command(thread, why)}"


STUCK_HEADER = ("TENANT", "THREAD", "STUCK", "CAUSE", "TURN", "PENDING", "NOW")


def stuck_line(stuck: Stuck, *, all_tenants: bool) -> Line:
    """A stuck thread in a list."""
    thread, why = stuck.thread, stuck.why
    facts = {**thread_facts(thread), "stuck_ms": stuck.stuck_ms, "why": why_facts(thread, why)}
    cells = [
        *whose(thread.tenant, thread.thread_id, all_tenants=all_tenants),
        span(stuck.stuck_ms),
        why.cause.value,
        "-" if thread.turn is None else str(thread.turn),
        str(thread.pending),
        why_command(thread, why),
    ]
    return Line(facts, cells)


def message_facts(message: MessageReport, *, payloads: bool) -> dict[str, Any]:
    """A message; its payload only where it was asked for."""
    facts = {
        "tenant": message.tenant,
        "thread": message.thread_id,
        "incarnation": message.incarnation,
        "seq": message.seq,
        "message_id": message.message_id,
        "disposition": message.disposition,
        "turn": message.turn,
        "in_turn": message.in_turn,
        "policy": message.policy,
        "received_at": rfc3339(message.received_at),
        "redrive_of": message.redrive_of,
        "error": message.error,
        "payload_chars": message.payload_chars,
    }
    return {**facts, "payload": value_of(message.payload)} if payloads else facts


MESSAGE_HEADER = ("TENANT", "THREAD", "SEQ", "MESSAGE", "DISPOSITION", "RECEIVED", "CHARS")
DEAD_HEADER = ("TENANT", "THREAD", "SEQ", "MESSAGE", "TURN", "ERROR", "RECEIVED", "CHARS")


def message_line(message: MessageReport, *, all_tenants: bool, payloads: bool) -> Line:
    """A pending message in a list."""
    cells = [
        *whose(message.tenant, message.thread_id, all_tenants=all_tenants),
        str(message.seq),
        message.message_id,
        "in turn" if message.in_turn else message.disposition,
        shown_time(message.received_at),
        _payload_cell(message.payload, message.payload_chars),
    ]
    return Line(message_facts(message, payloads=payloads), cells)


def dead_line(message: MessageReport, *, all_tenants: bool, payloads: bool) -> Line:
    """A dead message in a list."""
    cells = [
        *whose(message.tenant, message.thread_id, all_tenants=all_tenants),
        str(message.seq),
        message.message_id,
        str(message.turn),
        message.error or "-",
        shown_time(message.received_at),
        _payload_cell(message.payload, message.payload_chars),
    ]
    return Line(message_facts(message, payloads=payloads), cells)


def _payload_cell(text: str | None, chars: int | None) -> str:
    if text is not None:
        return text
    return "purged" if chars is None else str(chars)


def turn_facts(turn: TurnReport, *, payloads: bool) -> dict[str, Any]:
    """A turn; its reply only where it was asked for."""
    facts = {
        "tenant": turn.tenant,
        "thread": turn.thread_id,
        "incarnation": turn.incarnation,
        "turn": turn.token,
        "agent": turn.agent,
        "owner": turn.owner,
        "state": turn.state,
        "from_seq": turn.from_seq,
        "to_seq": turn.to_seq,
        "error": turn.error,
        "started_at": rfc3339(turn.started_at),
        "ended_at": rfc3339(turn.ended_at),
        "late_ended_at": rfc3339(turn.late_ended_at),
        "run_ms": None if turn.ended_at is None else turn.ended_at - turn.started_at,
        "reply_chars": turn.reply_chars,
    }
    return {**facts, "reply": value_of(turn.reply)} if payloads else facts


TURN_HEADER = ("TENANT", "THREAD", "TURN", "STATE", "AGENT", "STARTED", "RAN", "ERROR", "REPLY")


def turn_line(turn: TurnReport, *, all_tenants: bool, payloads: bool) -> Line:
    """A turn in a list."""
    cells = [
        *whose(turn.tenant, turn.thread_id, all_tenants=all_tenants),
        str(turn.token),
        turn.state,
        turn.agent,
        shown_time(turn.started_at),
        "-" if turn.ended_at is None else span(turn.ended_at - turn.started_at),
        turn.error or "-",
        _reply_cell(turn.reply, turn.reply_chars),
    ]
    return Line(turn_facts(turn, payloads=payloads), cells)


def _reply_cell(text: str | None, chars: int | None) -> str:
    if text is not None:
        return text
    return "-" if chars is None else counted(chars, "char")


def intent_facts(intent: IntentReport, *, payloads: bool) -> dict[str, Any]:
    """An intent; its payload only where it was asked for."""
    facts = {
        "tenant": intent.tenant,
        "thread": intent.thread_id,
        "incarnation": intent.incarnation,
        "turn": intent.token,
        "name": intent.name,
        "agent": intent.agent,
        "state": intent.state,
        "attempts": intent.attempts,
        "step_key": intent.step_key,
        "error": intent.error,
        "not_before": rfc3339(intent.not_before or None),
        "leased_until": rfc3339(intent.leased_until),
        "expires_at": rfc3339(intent.expires_at),
        "created_at": rfc3339(intent.created_at),
        "ended_at": rfc3339(intent.ended_at),
        "payload_chars": intent.payload_chars,
    }
    return {**facts, "payload": value_of(intent.payload)} if payloads else facts


INTENT_HEADER = ("TENANT", "THREAD", "TURN", "NAME", "STATE", "ATTEMPTS", "CREATED", "ERROR", "CHARS")


def intent_line(intent: IntentReport, *, all_tenants: bool, payloads: bool) -> Line:
    """An intent in a list."""
    cells = [
        *whose(intent.tenant, intent.thread_id, all_tenants=all_tenants),
        str(intent.token),
        intent.name,
        intent.state,
        str(intent.attempts),
        shown_time(intent.created_at),
        intent.error or "-",
        _payload_cell(intent.payload, intent.payload_chars),
    ]
    return Line(intent_facts(intent, payloads=payloads), cells)


AUDIT_HEADER = ("AT", "TENANT", "THREAD", "TURN", "ACTION", "ACTOR", "REASON")


def audit_line(row: AuditReport, *, all_tenants: bool) -> Line:
    """An act in a list; one on the whole database has no thread."""
    facts = {
        "at": rfc3339(row.at),
        "tenant": row.tenant or None,
        "thread": row.thread_id or None,
        "incarnation": row.incarnation,
        "token": row.token,
        "action": row.action,
        "actor": row.actor,
        "reason": row.reason,
    }
    cells = [
        shown_time(row.at),
        *whose(row.tenant or "-", row.thread_id or "-", all_tenants=all_tenants),
        str(row.token),
        row.action,
        row.actor,
        row.reason,
    ]
    return Line(facts, cells)


def view_facts(view: ThreadView, *, payloads: bool) -> dict[str, Any]:
    """A thread with what is in it."""
    return {
        **thread_facts(view.thread),
        "why": why_facts(view.thread, view.why),
        "messages": [message_facts(message, payloads=payloads) for message in view.messages],
        "turns": [turn_facts(turn, payloads=payloads) for turn in view.turns],
        "intents": [intent_facts(intent, payloads=payloads) for intent in view.intents],
    }


LOAD_HEADER = ("TENANT", "AGENT", "RUN", "STALE", "WAIT", "OLDEST", "SEND", "DONE", "OTHER", "MEAN", "LONGEST")


def load_line(load: Load, *, all_tenants: bool) -> Line:
    """A tenant's agent in a list."""
    facts = {**asdict(load), "ended": dict(sorted(load.ended.items()))}
    not_done = sum(count for state, count in load.ended.items() if state != "done")
    cells = [
        *([load.tenant] if all_tenants else []),
        load.agent,
        str(load.running),
        str(load.stale),
        str(load.waiting),
        span(load.oldest_due_ms) if load.waiting else "-",
        str(load.intents),
        str(load.ended.get("done", 0)),
        str(not_done),
        "-" if load.average_ms is None else span(load.average_ms),
        "-" if load.longest_ms is None else span(load.longest_ms),
    ]
    return Line(facts, cells)


def top_facts(top: Top) -> dict[str, Any]:
    """What happens now, as one object."""
    return {
        "at": rfc3339(top.at),
        "loads": [load_line(load, all_tenants=True).facts for load in top.loads],
        "running": [thread_facts(thread) for thread in top.running],
        "stuck": [stuck_line(stuck, all_tenants=True).facts for stuck in top.stuck],
    }


WINDOW_HEADER = ("AGENT", "WINDOW", "LONGEST", "RUNS", "DAYS")


def window_line(window: WindowReport) -> Line:
    """An agent's window in a list."""
    days = [{"day": _date(day.day), "longest_ms": day.longest_ms, "runs": day.runs} for day in window.days]
    facts = {**asdict(window), "days": days}
    cells = [window.agent, span(window.window_ms), span(window.longest_ms), str(window.runs), str(len(days))]
    return Line(facts, cells)


def _date(day: int) -> str:
    text = rfc3339(day * 86_400_000)
    return (text or "")[:10]


TRIED_HEADER = ("AGENT", "MARGIN", "RUNS", "FALSE RECLAIMS", "RATE", "DELAY MEDIAN", "95 %", "MAX")


def tried_line(tried: Tried) -> Line:
    """A margin in a list."""
    cells = [
        tried.agent,
        str(tried.margin),
        str(tried.runs),
        str(tried.false_reclaims),
        f"{tried.false_rate:.2%}",
        span(tried.delay_median_ms),
        span(tried.delay_p95_ms),
        span(tried.delay_max_ms),
    ]
    return Line({**asdict(tried), "false_rate": round(tried.false_rate, 6)}, cells)
