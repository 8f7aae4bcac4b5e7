"""`chatlock answer`: the decision that a thread waits for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from chatlock.cli.context import Context, RaceLost, Refused, no_such_thread, with_tenant
from chatlock.cli.output import visible
from chatlock.protocol import AlreadyAnswered, Conflict, Gone, Parked, Queued, Status
from chatlock.protocol import Refused as NotOpen

if TYPE_CHECKING:
    from chatlock.protocol import Outcome


@click.command()
@click.argument("thread")
@click.option("--question", required=True, metavar="ID", help="The question that you saw.")
@click.option("--decision", metavar="TEXT", help="The decision as a text.")
@click.option("--decision-json", metavar="JSON", help="The decision as a JSON value.")
@with_tenant
def answer(context: Context, thread: str, question: str, decision: str | None, decision_json: str | None) -> None:
    """Answer the question that a thread waits for; its next turn takes the decision.

    `threads show` has the question's id and, with --payloads, what it asks. A decision is taken once: the same
    one again says what became of it. Exit code 4: another was taken, or the question is not open any more.

    \b
    Examples:
      chatlock answer --tenant acme t1 --question 4f1c --decision yes
      chatlock answer --tenant acme t1 --question 4f1c --decision-json '{"approved": true}'
    """
    if (decision is None) == (decision_json is None):
        raise click.UsageError("give the decision by --decision or by --decision-json")
    value = decision if decision_json is None else _parsed(decision_json)
    with context.chat() as chat:
        outcome = chat.answer(thread, question, value, wait_ms=0)
    became = _became(outcome)
    if became is not None or context.as_json:
        text = f"question {visible(question)} of {visible(thread)} is answered: {became}"
        facts = {"seq": outcome.seq, "outcome": type(outcome).__name__, "done": became is not None}
        context.show(text, thread=thread, question=question, **facts)
    if became is None:
        raise _refusal(outcome, thread, question)


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        raise click.BadParameter("this is no JSON", param_hint="'--decision-json'") from None


def _became(outcome: Outcome) -> str | None:
    """What became of the decision; None: it was not taken, or no turn will have it."""
    match outcome:
        case Queued(turn=None):
            return "the next turn takes the decision"
        case Queued(turn=turn):
            return f"turn {turn} has the decision"
        case Parked():
            return "the thread is parked, and its next turn takes the decision"
        case AlreadyAnswered(turn=turn):
            return f"turn {turn} took the decision"
    return None


def _refusal(outcome: Outcome, thread: str, question: str) -> click.ClickException:
    match outcome:
        case Conflict():
            return RaceLost(f"question {visible(question)} has another decision")
        case NotOpen(state=Status.ABSENT):
            return no_such_thread(thread)
        case NotOpen(reason=reason):
            return RaceLost(f"question {visible(question)}: refused ({reason.replace('_', ' ')})")
        case Gone():
            return Refused(f"thread {visible(thread)} is deleted")
    return Refused(f"the decision of question {visible(question)} is {type(outcome).__name__.lower()}")
