"""What a request asks for: its headers and its body, checked before anything is stored."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from chatlock import ChatlockError, InvalidInput, MissingTenant

BODY_BYTES_MAX = 512 * 1024
WAIT_MS = 30_000
WAIT_MS_MAX = 10 * 60_000
EVENTS = "text/event-stream"
_KEY = re.compile(r'"((?:[^"\\]|\\["\\])*)"|([^\s",;]+)')
_WAIT = re.compile(r"\bwait\s*=\s*(\d{1,6})\b", re.I)
_ASYNC = re.compile(r"\brespond-async\b", re.I)
_ETAG = re.compile(r'"\d{1,15}-(\d{1,15})"')
_SURROGATE = re.compile("[\ud800-\udfff]")
_JSON = re.compile(r"application/(?:[\w.-]+\+)?json\s*(?:;.*)?", re.I | re.S)


@dataclass(frozen=True)
class Asked:
    """The headers that say how a message is to be taken in."""

    message_id: str
    wait_ms: int
    if_turn: int | None
    streams: bool
    applied: str = ""
    answers: bool = False

    @classmethod
    def of(cls, headers: Mapping[str, str], question_id: str | None = None) -> Asked:
        """question_id: the message answers this question, and has its id.  Raises InvalidInput."""
        key = question_id if question_id is not None else idempotency_key(headers.get("idempotency-key"))
        return cls(
            answers=question_id is not None,
            message_id=key if key is not None else uuid.uuid4().hex,
            wait_ms=wait_ms_of(headers.get("prefer")),
            if_turn=turn_of(headers.get("if-match")),
            streams=EVENTS in headers.get("accept", "").lower(),
            applied=applied_of(headers.get("prefer")),
        )


class NotATenant(ChatlockError):
    """The application named no tenant, and not nobody either."""

    def __init__(self, told: object) -> None:
        super().__init__(
            f"the application's tenant function must return a non-empty str, or None for nobody,"
            f" and returned {'an empty one' if told == '' else type(told).__name__}"
        )


def checked_owner(told: object) -> str:
    """The tenant, as the application told it.  Raises MissingTenant for nobody, NotATenant for what is no text."""
    if told is None:
        raise MissingTenant
    if not isinstance(told, str) or not told:
        raise NotATenant(told)
    return told


def headers_of(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """ASGI headers by lower-case name; repeated ones joined.  Bytes that are not UTF-8 become lone surrogates, which no
    id may have.
    """
    headers: dict[str, str] = {}
    for raw_name, raw_value in raw:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("utf-8", "surrogateescape")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def idempotency_key(header: str | None) -> str | None:
    """The Idempotency-Key, quoted as the draft says or bare as most clients send it.  Raises InvalidInput."""
    if header is None:
        return None
    found = _KEY.fullmatch(header.strip())
    if found is None:
        raise InvalidInput("bad_idempotency_key", "Idempotency-Key must be one string, quoted or bare")
    quoted, bare = found.groups()
    return addressable(bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted))


def addressable(message_id: str) -> str:
    """The id, if it can be a segment of a URL's path.  Raises InvalidInput."""
    if "/" in message_id or message_id in (".", "..") or _SURROGATE.search(message_id):
        raise InvalidInput("bad_message_id", "a message id is text without a slash, and neither . nor ..")
    return message_id


def below(path: str, message_id: str) -> str:
    """Where a message is found, below the path of its thread's messages."""
    return f"{path}/{quote(message_id, safe='')}"


def wait_ms_of(prefer: str | None) -> int:
    """How long to wait, from Prefer: `respond-async` alone does not wait, `wait=N` waits N seconds, at most 600."""
    if prefer is None:
        return WAIT_MS
    wait = _WAIT.search(prefer)
    if wait is not None:
        return min(int(wait.group(1)) * 1000, WAIT_MS_MAX)
    return 0 if _ASYNC.search(prefer) else WAIT_MS


def applied_of(prefer: str | None) -> str:
    """Preference-Applied of a 202: what Prefer asked for and was done; "" where it asked for nothing, or too much."""
    wait = _WAIT.search(prefer or "")
    honored = ["respond-async"] if _ASYNC.search(prefer or "") else []
    if wait is not None and int(wait.group(1)) * 1000 <= WAIT_MS_MAX:
        honored.append(f"wait={int(wait.group(1))}")
    return ", ".join(honored)


def turn_of(if_match: str | None) -> int | None:
    """The token of the turn that If-Match names by its ETag.  Raises InvalidInput."""
    if if_match is None:
        return None
    found = _ETAG.fullmatch(if_match.strip())
    if found is None:
        raise InvalidInput("bad_if_match", "If-Match must be one ETag of a turn, as an answer named it")
    return int(found.group(1))


def named_turn(headers: Mapping[str, str]) -> int:
    """The turn that If-Match names, as whoever stops one has to: never the next.  Raises InvalidInput."""
    token = turn_of(headers.get("if-match"))
    if token is None:
        raise InvalidInput("precondition_required", "name the turn: If-Match with the ETag of a message that it has")
    return token


def check_json(headers: Mapping[str, str]) -> None:
    """Raises InvalidInput unless the body says that it is JSON: no page of another site can say so without asking."""
    if not _JSON.fullmatch(headers.get("content-type", "").strip()):
        raise InvalidInput("not_json_content_type", "the body must be application/json")


async def body_of(parts: AsyncIterator[bytes]) -> bytes:
    """The body, up to the limit.  Raises InvalidInput."""
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise InvalidInput("too_large", f"the body is larger than {BODY_BYTES_MAX} bytes")
    return bytes(body)


def payload_of(body: bytes | str) -> Any:
    """The JSON value of a body.  Raises InvalidInput."""
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InvalidInput("not_json", "the body is not JSON") from None


def _no_constant(name: str) -> Any:
    raise ValueError(name)
