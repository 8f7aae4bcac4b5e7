"""Errors as HTTP answers, the same for every framework: RFC 9457 documents.  What is the server's fault is logged.

Nothing here names another tenant, a payload, who holds a turn or a secret.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import Any

from chatlock import ChatlockError, ClaimLost, InvalidInput, MissingTenant, StoreUnavailable

log = logging.getLogger("chatlock")

PROBLEM = "application/problem+json"
RETRY_S = 2
SETUP = 500
INPUT_STATUS = {"too_large": 413, "not_json_content_type": 415, "precondition_required": 428}
INPUT_TITLES = {
    400: "The request is not valid",
    413: "Too large",
    415: "Not application/json",
    428: "If-Match is missing",
}


@dataclass(frozen=True)
class Answer:
    """What to send back."""

    status: int
    body: dict[str, Any] | None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def media_type(self) -> str | None:
        """application/problem+json for errors, else application/json; None without a body."""
        if self.body is None:
            return None
        return PROBLEM if self.status >= 400 else "application/json"

    def content(self) -> bytes:
        """The body as UTF-8 JSON."""
        return b"" if self.body is None else compact(self.body).encode()


def compact(value: Any) -> str:
    """Canonical enough for the wire: JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def answer(status: int, body: dict[str, Any] | None, **headers: str) -> Answer:
    """An answer that nobody keeps: the same request may be told something else a moment later."""
    named = {name.replace("_", "-"): value for name, value in headers.items() if value}
    return Answer(status, body, {"Cache-Control": "no-store", **named})


def problem(status: int, name: str, title: str, *, retry_s: int = 0, etag: str = "", **more: Any) -> Answer:
    """An RFC 9457 document; `name` is the last part of its type.  retry_s: when it may be tried again; 0 = not.

    etag: the turn that is in the way.
    """
    members = {key: value for key, value in more.items() if value is not None}
    body = {"type": f"urn:chatlock:problem:{name}", "title": title, "status": status, **members}
    return answer(status, body, ETag=etag, Retry_After=str(retry_s) if retry_s else "")


def failure(status: int, name: str, title: str, error: ChatlockError, *, retry_s: int = 0) -> Answer:
    """A problem that is the server's fault.  error: what the log says, and no client is told."""
    level = logging.ERROR if status == SETUP else logging.WARNING
    kind = type(error).__name__
    log.log(level, "http.failed: %s: %s", kind, error, extra={"status": status, "problem": name, "error": kind})
    return problem(status, name, title, retry_s=retry_s)


def not_found() -> Answer:
    """One answer for what never existed and for what is another tenant's."""
    return problem(404, "not-found", "No such message")


def answer_to_error(error: ChatlockError) -> Answer:
    """The answer to an error that chatlock raised.  One that is the server's fault is logged: call it once for each."""
    if isinstance(error, MissingTenant):
        return problem(401, "no-tenant", "Who is asking is not known")
    if isinstance(error, InvalidInput):
        status, name = INPUT_STATUS.get(error.reason, 400), error.reason.replace("_", "-")
        return problem(status, name, INPUT_TITLES[status], detail=str(error))
    if isinstance(error, StoreUnavailable) and error.commit_unknown:
        title = "The result is not known; send it again with the same key"
        return failure(503, "unknown", title, error, retry_s=RETRY_S)
    if isinstance(error, StoreUnavailable):
        return failure(503, "unavailable", "Nothing was stored; try again", error, retry_s=RETRY_S)
    if isinstance(error, ClaimLost):
        return failure(503, "turn-lost", "The turn was lost; send it again with the same key", error, retry_s=RETRY_S)
    return failure(SETUP, "internal", "The service is not set up correctly", error)
