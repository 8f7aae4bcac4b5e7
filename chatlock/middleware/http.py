"""Outcomes as HTTP answers, the same for every framework: status, headers, JSON."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from chatlock import (
    AlreadyAnswered,
    Answered,
    Busy,
    CancelReceipt,
    Conflict,
    Dead,
    Gone,
    NotFound,
    Outcome,
    Parked,
    Queued,
    Refused,
    StoreUnavailable,
    Superseded,
    Unknown,
)
from chatlock.middleware.problems import RETRY_S, Answer, answer, answer_to_error, not_found, problem

RETRY_LEAST_S, RETRY_MOST_S = 1, 10
NOT_TOLD = {"reason", "holder"}  # an error's text and a process's name are for operators
PRECONDITIONS = ("not_running", "other_turn")


@dataclass(frozen=True)
class Stream:
    """Server-sent events to send back, with status 200."""

    events: AsyncIterator[bytes]
    headers: dict[str, str] = field(default_factory=dict)


def document(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON: its kind in lower case, and its fields."""
    return {"outcome": kind(type(outcome)), **{k: v for k, v in vars(outcome).items() if k not in NOT_TOLD}}


def kind(outcome: type[Outcome]) -> str:
    """An outcome's name on the wire."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", outcome.__name__).lower()


def etag(outcome: Outcome) -> str:
    """The turn that answers or has answered the message, for If-Match; "" where there is none."""
    turn = getattr(outcome, "turn", None)
    return f'"{outcome.incarnation}-{turn}"' if turn is not None and outcome.incarnation is not None else ""


def retry_s(eta_ms: int | None) -> int:
    """When to ask again, in seconds: when there may be an answer, within bounds."""
    return RETRY_S if eta_ms is None else max(RETRY_LEAST_S, min(RETRY_MOST_S, math.ceil(eta_ms / 1000)))


def answer_to_submit(outcome: Outcome, where: str = "", applied: str = "") -> Answer:
    """The answer to a POST.  where: the message's location, if it has one.  applied: the preferences a 202 honors."""
    match outcome:
        case Answered():
            return answer(200, document(outcome), Content_Location=where, ETag=etag(outcome))
        case AlreadyAnswered():
            replayed = {"Content_Location": where, "ETag": etag(outcome), "Idempotency_Replayed": "true"}
            return answer(200, document(outcome), **replayed)
        case Queued() | Parked():
            retry = str(retry_s(getattr(outcome, "eta_ms", None)))
            headers = {"Location": where, "Retry_After": retry, "Preference_Applied": applied}
            return answer(202, document(outcome), ETag=etag(outcome), **headers)
        case Conflict():
            return problem(422, "idempotency-key-reused", "This key was used with another payload")
        case Busy():
            told: dict[str, Any] = {"since_ms": outcome.since_ms, "live": outcome.live}
            told |= {"position": outcome.position, "eta_ms": outcome.eta_ms}
            return problem(409, "thread-busy", "A turn is running", retry_s=retry_s(outcome.eta_ms), **told)
        case Refused(reason="full"):
            return problem(429, "too-many-pending", "Too many messages wait for a turn", retry_s=RETRY_S)
        case Refused():
            status, name = (412, "precondition-failed") if outcome.reason in PRECONDITIONS else (409, "refused")
            return problem(status, name, "Refused in the present state", reason=outcome.reason, state=outcome.state)
        case Gone():
            return problem(410, "thread-deleted", "This thread was deleted")
        case NotFound():
            return not_found()
        case Unknown():
            lost = "a commit was sent and its answer is missing"
            return answer_to_error(StoreUnavailable(lost, commit_unknown=True))
        case Dead():
            return problem(409, "message-dead", "The message was given up")
        case Superseded():
            return problem(409, "message-superseded", "A newer message took its place")
    return problem(409, f"message-{kind(type(outcome))}", "The message was resolved without an answer")


def answer_to_status(outcome: Outcome) -> Answer:
    """The answer to a GET: the outcome, or 404 as for a message that never existed."""
    if isinstance(outcome, NotFound):
        return not_found()
    again = str(retry_s(outcome.eta_ms)) if isinstance(outcome, Queued) else ""
    return answer(200, document(outcome), ETag=etag(outcome), Retry_After=again)


def answer_to_cancel(outcome: Outcome, now: Outcome | None = None) -> Answer:
    """The answer to a cancellation: what became of the message.  now: where it stands, if a turn had it."""
    if isinstance(outcome, Refused) and (now is None or isinstance(now, Queued)):
        told: dict[str, Any] = {"reason": outcome.reason, "state": outcome.state, "turn": getattr(now, "turn", None)}
        return problem(409, "in-turn", "A turn has this message", etag=etag(now) if now else "", **told)
    return answer_to_status(now or outcome)


def answer_to_edit(outcome: Outcome, edit_id: str, where: str, now: Outcome | None = None) -> Answer:
    """The answer to an edit: what becomes of the new message, or why the old one stays.

    where: the new message's.  now: where the old one stands, if a turn was found to have it.
    """
    if isinstance(outcome, Refused) and (now is None or isinstance(now, Queued)):
        return answer_to_cancel(outcome, now)
    found = now or outcome
    if isinstance(found, AlreadyAnswered) and found.message_id != edit_id:
        return problem(409, "message-answered", "The message was answered")
    return answer_to_submit(found, where)


def answer_to_stop(receipt: CancelReceipt) -> Answer:
    """The answer to the wish that a turn stops: what becomes of the messages."""
    if not receipt.done:
        title = "This turn does not run"
        return problem(412, "precondition-failed", title, reason=receipt.reason, state=receipt.state)
    return answer(202, vars(receipt))
