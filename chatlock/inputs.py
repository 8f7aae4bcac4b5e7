"""Limits on every input, and the two derivations that must be injective: canonical JSON and the hash of a key."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from chatlock.errors import InvalidInput, MissingTenant
from chatlock.policies import PRIORITIES
from chatlock.protocol import Limits

ID_BYTES_MAX = 200
PAYLOAD_BYTES_MAX = 256 * 1024
REPLY_BYTES_MAX = 1024 * 1024
DEPTH_MAX = 64
REPLY_DEPTH_MAX = 80
"""Some levels more than a payload may have: a reply often holds what it answers."""
INTEGER_MAX = 2**53
MS_MAX = 10**12
"""31 years: a wait that is much longer overflows the clocks of threads."""
MAY_BE_ZERO = frozenset({"backoff_ms", "backoff_max_ms", "hand_offs_max", "mid_fetches_max", "window_runs_min"})


@dataclass(frozen=True)
class Key:
    """The unit that is serialized: a tenant's thread.  Both from trusted code, 1 to 200 bytes, compared bytewise."""

    tenant: str
    """The owner."""
    thread: str
    """The conversation."""


def plain(text: str) -> str:
    """The characters of a text: an instance of a subclass, as an Enum's member, may be another text by str()."""
    return str.__str__(text)


def checked_id(value: object, name: str) -> str:
    """`value`, as a plain str, if it is 1 to 200 bytes of UTF-8 without control characters or lone surrogates.

    Else InvalidInput.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"bad_{name}", f"{name} must be a str, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"bad_{name}", f"{name} has a lone surrogate") from None
    if not 1 <= size <= ID_BYTES_MAX:
        raise InvalidInput(f"bad_{name}", f"{name} must be 1 to {ID_BYTES_MAX} bytes of UTF-8, not {size}")
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in value):
        raise InvalidInput(f"bad_{name}", f"{name} has a control character")
    return plain(value)


def checked_key(tenant: str | None, thread: object) -> Key:
    """The key of a thread; MissingTenant without a tenant."""
    if tenant is None:
        raise MissingTenant
    return Key(checked_id(tenant, "tenant"), checked_id(thread, "thread"))


def checked_ms(value: object, name: str, *, least: int = 0, most: int = MS_MAX) -> int:
    """`value` if it is a whole number of milliseconds between `least` and `most`."""
    return checked_int(value, name, least=least, most=most, of=" of milliseconds")


def checked_wait(wait_ms: object) -> int | None:
    """How long a caller waits, in ms; None: until there is an outcome."""
    return None if wait_ms is None else checked_ms(wait_ms, "wait_ms")


def checked_int(value: object, name: str, *, least: int = 0, most: int = INTEGER_MAX, of: str = "") -> int:
    """`value` if it is a whole number between `least` and `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"bad_{name}", f"{name} must be an int{of}, not {type(value).__name__}")
    if not least <= value <= most:
        raise InvalidInput(f"bad_{name}", f"{name} must be between {least} and {most}{of}")
    return int(value)


def checked_flag(value: object, name: str) -> bool:
    """`value` if it is True or False: a text that says no would count as a yes."""
    if not isinstance(value, bool):
        raise InvalidInput(f"bad_{name}", f"{name} must be True or False, not of type {type(value).__name__}")
    return value


def check_callable(value: object, name: str) -> None:
    """Raises InvalidInput for what cannot be called, now and not when it would be."""
    if not callable(value):
        raise InvalidInput(f"bad_{name}", f"{name} must be callable, not {type(value).__name__}")


def checked_word(value: object, name: str, words: Collection[str]) -> str:
    """`value` if it is one of `words`."""
    if not isinstance(value, str) or value not in words:
        raise InvalidInput(f"bad_{name}", f"{name} must be one of {', '.join(words)}")
    return value


def checked_priority(name: object) -> int:
    """The number of a class.  Raises InvalidInput for what is none."""
    return PRIORITIES[checked_word(name, "priority", PRIORITIES)]


def checked_limits(limits: object) -> Limits:
    """`limits` if a client can work under them: whole numbers, in their order, and a beat before a lease is over."""
    if not isinstance(limits, Limits):
        raise InvalidInput("bad_limits", f"limits must be chatlock.Limits, not {type(limits).__name__}")
    for name, value in vars(limits).items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidInput("bad_limits", f"{name} must be an int, not {type(value).__name__}")
        least, most = 0 if name in MAY_BE_ZERO else 1, MS_MAX if name.endswith("_ms") else INTEGER_MAX
        if not least <= value <= most:
            raise InvalidInput("bad_limits", f"{name} must be between {least} and {most}, not {value}")
    if limits.beat_ms >= limits.lease_ms:
        raise InvalidInput(
            "bad_limits", "beat_ms must be below lease_ms, else no beat comes in time to extend the lease"
        )
    if limits.backoff_ms > limits.backoff_max_ms or limits.window_floor_ms > limits.window_cap_ms:
        raise InvalidInput("bad_limits", "backoff_ms and window_floor_ms must not be above their maxima")
    return limits


def check_text(text: str, what: str) -> None:
    """Raises InvalidInput for text that UTF-8 (a lone surrogate) or PostgreSQL (a NUL) cannot carry."""
    if not isinstance(text, str):
        raise InvalidInput("bad_text", f"{what} must be a str, not {type(text).__name__}")
    if "\0" in text:
        raise InvalidInput("bad_text", f"{what} has a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput("bad_text", f"{what} has a lone surrogate") from None


def storable(text: str, chars_max: int) -> str:
    """`text` cut, and with what cannot be stored escaped: what an error says must not keep its turn from ending."""
    return text[:chars_max].encode(errors="backslashreplace").decode().replace("\0", "\\x00")[:chars_max]


def _check_leaf(value: object, what: str) -> None:
    if isinstance(value, str):
        check_text(value, what)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput("bad_number", f"{what} has NaN or an infinity")
    elif isinstance(value, int):
        if abs(value) > INTEGER_MAX:
            raise InvalidInput("bad_number", f"{what} has an integer beyond 2**53")
    elif value is not None:
        raise InvalidInput(
            "not_json",
            f"{what} holds a value of type {type(value).__name__}, which JSON cannot carry: make it of"
            " str, int, float, bool, None, list, tuple and dict",
        )


def _check_tree(value: object, what: str, bytes_max: int, depth_max: int) -> None:
    todo: list[tuple[object, int]] = [(value, 1)]
    size = 0  # what the JSON takes at least: a value and a character a byte; judged before anything is copied
    while todo:
        node, depth = todo.pop()
        if isinstance(node, dict | list | tuple | str):
            size += len(node)
            if size > bytes_max:
                raise InvalidInput("too_large", f"{what} is over the limit of {bytes_max} bytes of JSON")
        if isinstance(node, dict | list | tuple) and depth > depth_max:
            raise InvalidInput("too_deep", f"{what} is nested deeper than {depth_max}")
        if isinstance(node, dict):
            for name, item in node.items():
                if not isinstance(name, str):
                    raise InvalidInput("not_json", f"{what} has a key of type {type(name).__name__}, not str")
                check_text(name, what)
                todo.append((item, depth + 1))
        elif isinstance(node, list | tuple):
            todo.extend((item, depth + 1) for item in node)
        else:
            _check_leaf(node, what)


def canonical_json(value: object, what: str, bytes_max: int, depth_max: int = DEPTH_MAX) -> str:
    """`value` as canonical JSON (sorted keys, no spaces) within `bytes_max`, or InvalidInput before anything is
    written.
    """
    _check_tree(value, what, bytes_max, depth_max)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    size = len(text.encode())
    if size > bytes_max:
        raise InvalidInput("too_large", f"{what} is {size} bytes of JSON; the limit is {bytes_max}")
    return text


def check_chunk(chunk: object) -> None:
    """Raises InvalidInput for what no reply may hold: listeners are sent it before its turn ends."""
    _check_tree(chunk, "chunk", REPLY_BYTES_MAX, REPLY_DEPTH_MAX)


def payload_json(payload: object) -> tuple[str, str]:
    """A message's payload as canonical JSON, and its sha256."""
    text = canonical_json(payload, "payload", PAYLOAD_BYTES_MAX)
    return text, hashlib.sha256(text.encode()).hexdigest()


def reply_json(reply: object) -> str:
    """A turn's reply as canonical JSON."""
    return canonical_json(reply, "reply", REPLY_BYTES_MAX, REPLY_DEPTH_MAX)


def from_json(text: str | None) -> Any:
    """The value of stored JSON; None for none."""
    return None if text is None else json.loads(text)


def digest(*parts: str | int) -> str:
    """An injective hash of `parts`: each goes in with its length, so no two sequences run together."""
    h = hashlib.sha256()
    for part in parts:
        data = (plain(part) if isinstance(part, str) else str(part)).encode()
        h.update(f"{len(data)}:".encode() + data)
    return h.hexdigest()


def key_hash(key: Key) -> str:
    """The name of a thread in job ids, channels and lock names: 64 hex digits, one per (tenant, thread)."""
    return digest(key.tenant, key.thread)


def new_id() -> str:
    """A fresh unique id."""
    return uuid.uuid4().hex
