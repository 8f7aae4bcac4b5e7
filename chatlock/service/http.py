"""dispatch=http: each wake-up is a signed POST to the application, which runs the turn (see receiver.py)."""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from chatlock.inputs import key_hash
from chatlock.ops.due import Dispatched
from chatlock.service.signature import HEADER, sign
from chatlock.settings import Settings

log = logging.getLogger("chatlock")

POSTS_AT_ONCE = 16
POST_S = 10.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would come back as a GET that somebody answers with 200."""

    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        """Not followed: the answer counts as refused."""


class HttpSender:
    """Posts wake-ups, a few at once.  2xx: accepted.  Anything else leaves the thread to its dispatch lease."""

    def __init__(self, settings: Settings) -> None:
        if settings.http_url is None or settings.http_secret is None:
            raise ValueError("dispatch=http needs http_url and http_secret")
        self._url, self._secret = settings.http_url, settings.http_secret.get_secret_value()
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._posts = ThreadPoolExecutor(POSTS_AT_ONCE, thread_name_prefix="chatlock-post")
        self._changed = threading.Lock()
        self._posting = 0
        self._fault: str | None = None

    def room(self) -> int:
        """See Sender."""
        return POSTS_AT_ONCE - self._posting

    def send(self, wake_up: Dispatched, purpose: str) -> None:
        """See Sender."""
        self._count(1)
        self._posts.submit(self._post, wake_up)

    def maintain(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Lets posts that have begun end."""
        self._posts.shutdown(cancel_futures=True)

    def _count(self, change: int) -> None:
        with self._changed:
            self._posting += change

    def _post(self, wake_up: Dispatched) -> None:
        key = wake_up.key
        facts = {
            "tenant": key.tenant,
            "thread": key.thread,
            "incarnation": wake_up.incarnation,
            "token": wake_up.token,
        }
        body = json.dumps(facts).encode()
        headers = {"Content-Type": "application/json", HEADER: sign(self._secret, int(time.time()), body)}
        request = urllib.request.Request(self._url, body, headers, method="POST")
        fault = None
        try:
            self._opener.open(request, timeout=POST_S).close()
        except urllib.error.HTTPError as error:
            fault = f"status {error.code}"
            error.close()
        except Exception as error:  # noqa: BLE001  whatever broke, the dispatch lease decides
            fault = type(error).__name__
        finally:
            self._count(-1)
        with self._changed:
            before, self._fault = self._fault, fault
        if fault is not None and fault != before:
            log.error("dispatch.http_failed", extra={"thread_hash": key_hash(key)[:12], "error": fault})
