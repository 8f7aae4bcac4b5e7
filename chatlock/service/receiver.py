"""The application's end of dispatch=http, for the endpoint at http_url.

key = verify(request.headers, await request.body(), [SECRET])    # InvalidInput: answer 401
return 202 if accept(chat, key) else 503                         # 503: sent again after the dispatch lease

An application with a task queue of its own enqueues the key instead, and its task calls run(chat, key).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from chatlock.client import Chatlock
from chatlock.client_base import Client
from chatlock.errors import InvalidInput
from chatlock.inputs import Key, checked_key
from chatlock.service.signature import HEADER, check


def verify(headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now_s: float | None = None) -> Key:
    """The thread that a dispatched POST names.  Raises InvalidInput unless one of the secrets signed it, at most 5
    minutes ago.

    Two secrets serve while one is rotated into the other.  A repeated POST is harmless: a thread that is not due any
    more is not run again.

    Args:
        headers: Those of the request.
        body: That of the request, as it came.
        secrets: What CHATLOCK_HTTP_SECRET is, and was.
        now_s: The time, in seconds since 1970.  None: this host's.
    """
    signature = next((value for name, value in headers.items() if name.lower() == HEADER.lower()), None)
    check(signature, body, secrets, time.time() if now_s is None else now_s)
    try:
        named = json.loads(body)
        return checked_key(named["tenant"], named["thread"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InvalidInput("bad_body", "the body is no wake-up: an object with tenant and thread") from None


def accept(chat: Client, key: Key) -> bool:
    """Begins what is due of the thread, in this process: its turns by the handler of its agent, then its replies.

    Returns at once.  False: the client runs turns_max already, or is closing.  An AsyncChatlock runs it on the event
    loop that calls this.

    Args:
        chat: A Chatlock or AsyncChatlock.
        key: What verify returned.
    """
    if chat._flows.closing:
        return False
    chat._ready()
    if chat._capacity() <= 0:
        return False
    chat._start_flow(chat._run_due(key, "http"))
    return True


def run(chat: Chatlock, key: Key) -> bool:
    """Runs what is due of the thread here and now: its turns by the handler of its agent, then its replies.

    Whether it ran a turn: False where the thread is not due any more, so that a repeated call is harmless.  Raises
    StoreUnavailable and Closed, never the handler's error.

    Args:
        chat: A Chatlock.
        key: What verify returned, or the thread that a task queue's message names.
    """
    return chat._do(chat._run_due(key, "http"))
