"""Outcomes and errors as HTTP answers, the same for every framework: status, headers, JSON.

Problems are RFC 9457 documents.  Nothing here names another tenant, a payload or a secret.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from chatlock import (
    AlreadyAnswered,
    Answered,
    Busy,
    ChatlockError,
    Conflict,
    Dead,
    Gone,
    InvalidInput,
    MissingTenant,
    NotFound,
    Outcome,
    Parked,
    Queued,
    Refused,
    StoreUnavailable,
    Superseded,
    Unknown,
)

PROBLEM = "application/problem+json"
BODY_BYTES_MAX = 512 * 1024
RETRY_S = 2
RETRY_LEAST_S, RETRY_MOST_S = 1, 10
_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"|([^\s",;]+)')
_WAIT = re.compile(r"\bwait\s*=\s*(\d{1,6})\b")


@dataclass(frozen=True)
class Answer:
    """What to send back."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def media_type(self) -> str:
        """application/problem+json for errors, else application/json."""
        return PROBLEM if self.status >= 400 else "application/json"

    def content(self) -> bytes:
        """The body as UTF-8 JSON."""
        return json.dumps(self.body, ensure_ascii=False, separators=(",", ":")).encode()


def problem(status: int, name: str, title: str, *, detail: str = "", retry: bool = False, **more: Any) -> Answer:
    """An RFC 9457 document; `name` is the last part of its type."""
    body = {"type": f"urn:chatlock:problem:{name}", "title": title, "status": status, **more}
    headers = {"Cache-Control": "no-store"}
    if detail:
        body["detail"] = detail
    if retry:
        headers["Retry-After"] = str(retry_s(more.get("eta_ms")))
    return Answer(status, body, headers)


def retry_s(eta_ms: int | None) -> int:
    """When to ask again, in seconds: when there may be an answer, within bounds."""
    return RETRY_S if eta_ms is None else max(RETRY_LEAST_S, min(RETRY_MOST_S, math.ceil(eta_ms / 1000)))


def _retry_after(outcome: Outcome) -> dict[str, str]:
    return {"Retry-After": str(retry_s(getattr(outcome, "eta_ms", None)))}


def document(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON: its fields, and its kind in lower case."""
    return {"outcome": _kind(outcome), **vars(outcome)}


def _kind(outcome: Outcome) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(outcome).__name__).lower()


def location(prefix: str, thread: str, message_id: str) -> str:
    """Where a message's outcome can be read; ids are user data and quoted."""
    return f"{prefix}/threads/{quote(thread, safe='')}/messages/{quote(message_id, safe='')}"


def answer_to_submit(outcome: Outcome, where: str) -> Answer:
    """The answer to a POST.  where: the location of the message."""
    match outcome:
        case Answered():
            return Answer(200, document(outcome), {"Content-Location": where})
        case AlreadyAnswered():
            return Answer(200, document(outcome), {"Content-Location": where, "Idempotency-Replayed": "true"})
        case Queued() | Parked():
            headers = {"Location": where, "Preference-Applied": "respond-async", **_retry_after(outcome)}
            return Answer(202, document(outcome), headers)
        case Conflict():
            return problem(422, "idempotency-key-reused", "This key was used with another payload")
        case Busy():
            return problem(
                409, "thread-busy", "A turn is running", retry=True, since_ms=outcome.since_ms, eta_ms=outcome.eta_ms
            )
        case Refused():
            return problem(412, "precondition-failed", "Refused in the present state", reason=outcome.reason)
        case Gone():
            return problem(410, "thread-deleted", "This thread was deleted")
        case NotFound():
            return not_found()
        case Unknown():
            return problem(503, "unknown", "The result is not known; send it again with the same key", retry=True)
        case Dead():
            return problem(409, "message-dead", "The message was given up", reason=outcome.reason)
        case Superseded():
            return problem(409, "message-superseded", "A newer message took its place")
    return problem(409, f"message-{_kind(outcome)}", "The message was resolved without an answer")


def answer_to_status(outcome: Outcome) -> Answer:
    """The answer to a GET: the outcome, or 404 as for a message that never existed."""
    if isinstance(outcome, NotFound):
        return not_found()
    return Answer(200, document(outcome), _retry_after(outcome) if isinstance(outcome, Queued) else {})


def answer_to_cancel(outcome: Outcome) -> Answer:
    """The answer to a cancellation: what became of the message."""
    if isinstance(outcome, Refused):
        return problem(409, "in-turn", "A turn has this message", reason=outcome.reason)
    return answer_to_status(outcome)


def not_found() -> Answer:
    """One answer for what never existed and for what is another tenant's."""
    return problem(404, "not-found", "No such message")


def answer_to_error(error: ChatlockError) -> Answer:
    """The answer to an error that chatlock raised."""
    if isinstance(error, MissingTenant):
        return problem(401, "no-tenant", "Who is asking is not known")
    if isinstance(error, InvalidInput):
        status = 413 if error.reason == "too_large" else 400
        return problem(status, error.reason.replace("_", "-"), "The request breaks a limit", detail=str(error))
    if isinstance(error, StoreUnavailable):
        return problem(503, "unavailable", "Nothing was stored; try again", retry=True)
    return problem(500, "internal", "The service is not set up correctly")


def payload_of(body: bytes) -> Any:
    """The JSON value of a request body.  Raises InvalidInput."""
    if len(body) > BODY_BYTES_MAX:
        raise InvalidInput("too_large", f"the body is larger than {BODY_BYTES_MAX} bytes")
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InvalidInput("not_json", "the body is not JSON") from None


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def idempotency_key(header: str | None) -> str | None:
    """The Idempotency-Key, quoted as the draft says or bare as most clients send it.  Raises InvalidInput."""
    if header is None:
        return None
    found = _KEY.fullmatch(header.strip())
    if found is None:
        raise InvalidInput("bad_idempotency_key", "Idempotency-Key must be one string, quoted or bare")
    quoted, bare = found.groups()
    return bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)


def wait_ms_of(prefer: str | None, default_ms: int) -> int:
    """How long to wait, from Prefer: `respond-async` alone does not wait, `wait=N` waits N seconds."""
    if prefer is None:
        return default_ms
    wait = _WAIT.search(prefer)
    if wait is not None:
        return min(int(wait.group(1)) * 1000, 10 * 60_000)
    return 0 if "respond-async" in prefer else default_ms


def sse(event_id: str, kind: str, data: Any) -> bytes:
    """One server-sent event."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"id: {event_id}\nevent: {kind}\ndata: {text}\n\n".encode()
