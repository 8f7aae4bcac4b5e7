"""The answers of the endpoints as OpenAPI 3.1, drawn from the outcomes themselves."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from chatlock import (
    AlreadyAnswered,
    Answered,
    Cancelled,
    CancelReceipt,
    Dead,
    Expired,
    Gone,
    Outcome,
    Parked,
    Queued,
    Superseded,
)
from chatlock.middleware.asked import EVENTS
from chatlock.middleware.http import NOT_TOLD, kind
from chatlock.middleware.problems import INPUT_TITLES, PROBLEM

TYPES: dict[Any, str] = {str: "string", int: "integer", bool: "boolean", type(None): "null"}
PROBLEMS = {
    **INPUT_TITLES,
    401: "Who is asking is not known",
    404: "Not found, or another tenant's",
    409: "In the way of a turn, or resolved without an answer",
    410: "The thread was deleted",
    412: "The turn that If-Match names does not run",
    422: "The key was used with another payload",
    429: "Too many messages wait for a turn",
    500: "The service is not set up correctly",
    503: "Try again later",
}
RETRIED = {409: ("Retry-After", "ETag"), 429: ("Retry-After",), 503: ("Retry-After",)}
MESSAGE = (Answered, AlreadyAnswered, Queued, Parked, Superseded, Cancelled, Expired, Dead, Gone)
_HEADERS = {
    "Retry-After": ("Seconds", "integer"),
    "ETag": ("The turn, for If-Match", "string"),
    "Location": ("The message", "string"),
    "Content-Location": ("The message", "string"),
    "Preference-Applied": ("What Prefer asked for and was done", "string"),
    "Idempotency-Replayed": ("true: the stored answer of an earlier request", "string"),
}
_PAYLOAD = {
    "description": "The message: any JSON value of up to 256 KiB, 64 levels, integers within 2**53, no NUL",
    "required": True,
    "content": {"application/json": {"schema": {}}},
}


def _schema(hint: Any) -> dict[str, Any]:
    if hint is Any:
        return {}
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _schema(get_args(hint)[0])}
    names = [TYPES[part] for part in get_args(hint) or (hint,)]
    return {"type": names if len(names) > 1 else names[0]}


def outcome_schema(outcome: type[Outcome]) -> dict[str, Any]:
    """An outcome's document."""
    return _object(outcome, {"outcome": {"const": kind(outcome)}})


def _object(told: type[Outcome] | type[CancelReceipt], properties: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(told)
    hidden = NOT_TOLD if issubclass(told, Outcome) else set()
    properties |= {field.name: _schema(hints[field.name]) for field in fields(told) if field.name not in hidden}
    return {"type": "object", "title": told.__name__, "required": list(properties), "properties": properties}


def _told(description: str, outcomes: tuple[type[Outcome], ...], *names: str, streams: bool = False) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": {"oneOf": [outcome_schema(o) for o in outcomes]}}}
    if streams:
        content[EVENTS] = {"schema": {"type": "string"}}
    return {"description": description, "content": content, "headers": _headers(*names)}


def _headers(*names: str) -> dict[str, Any]:
    return {n: {"description": _HEADERS[n][0], "schema": {"type": _HEADERS[n][1]}} for n in names}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These statuses as problem documents."""
    members = {"type": {"type": "string"}, "title": {"type": "string"}, "status": {"type": "integer"}}
    schema = {"type": "object", "title": "Problem", "required": list(members), "properties": members}
    return {
        status: {
            "description": PROBLEMS[status],
            "content": {PROBLEM: {"schema": schema}},
            "headers": _headers(*RETRIED.get(status, ())),
        }
        for status in statuses
    }


def _parameter(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": {"type": "string"}}


_PREFER = _parameter("Prefer", "respond-async, wait=N: how many seconds to wait for the answer (30)")
_KEY = _parameter("Idempotency-Key", "The message's id, quoted or bare; without one a retry is a new message")
_IF_MATCH = _parameter("If-Match", "The ETag of a turn: take the message only while that turn runs")
_TAKEN_IN: dict[int | str, dict[str, Any]] = {
    200: _told(
        "Answered, or the events as they come",
        (Answered, AlreadyAnswered),
        *("Content-Location", "ETag", "Idempotency-Replayed"),
        streams=True,
    ),
    202: _told("Stored", (Queued, Parked), "Location", "Retry-After", "Preference-Applied", "ETag"),
    **problems(400, 401, 404, 409, 410, 412, 413, 415, 422, 429, 500, 503),
}
POST: dict[str, Any] = {
    "operation_id": "submit_message",
    "responses": _TAKEN_IN,
    "openapi_extra": {"requestBody": _PAYLOAD, "parameters": [_KEY, _PREFER, _IF_MATCH]},
}
ANSWER: dict[str, Any] = {
    "operation_id": "answer_question",
    "responses": _TAKEN_IN,
    "openapi_extra": {"requestBody": _PAYLOAD, "parameters": [_PREFER, _IF_MATCH]},
}
READ: dict[str, Any] = {
    "operation_id": "read_message",
    "responses": {
        200: _told("What became of the message", MESSAGE, "ETag", "Retry-After"),
        **problems(400, 401, 404, 500, 503),
    },
}
EDIT: dict[str, Any] = {
    "operation_id": "edit_message",
    "status_code": 202,
    "responses": {
        200: _told(
            "The new message was answered", (AlreadyAnswered,), "Content-Location", "ETag", "Idempotency-Replayed"
        ),
        202: _told("Stored in its place", (Queued, Parked), "Location", "Retry-After", "ETag"),
        **problems(400, 401, 404, 409, 410, 413, 415, 422, 500, 503),
    },
    "openapi_extra": {"requestBody": _PAYLOAD, "parameters": [_KEY]},
}
FOLLOW: dict[str, Any] = {
    "operation_id": "follow_message",
    "responses": {
        200: {"description": "The events as they come", "content": {EVENTS: {"schema": {"type": "string"}}}},
        204: {"description": "The last event was seen"},
        **problems(400, 401, 404, 500, 503),
    },
    "openapi_extra": {"parameters": [_parameter("Last-Event-ID", "The events after this one")]},
}
CANCEL: dict[str, Any] = {
    "operation_id": "cancel_message",
    "responses": {
        200: _told("What became of the message", MESSAGE, "ETag", "Retry-After"),
        **problems(400, 401, 404, 409, 500, 503),
    },
}
STOP: dict[str, Any] = {
    "operation_id": "stop_turn",
    "status_code": 202,
    "responses": {
        202: {
            "description": "The turn is asked to stop",
            "content": {"application/json": {"schema": _object(CancelReceipt, {})}},
        },
        **problems(400, 401, 412, 428, 500, 503),
    },
    "openapi_extra": {"parameters": [_parameter("If-Match", "The ETag of a message that the turn has")]},
}
