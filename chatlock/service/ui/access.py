"""Who may look: whoever shows the token, in a header, in the cookie that it was changed for, or once in the address."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

COOKIE = "chatlock_ui"
PREFIX = "/ui"


class Request(NamedTuple):
    """What was asked for.  Names of headers are in lower case."""

    path: str
    query: dict[str, str]
    headers: Mapping[str, str]

    @classmethod
    def of(cls, target: str, headers: Mapping[str, str]) -> Request:
        """A request line's target, taken apart; of a repeated name the first value counts."""
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        return cls(parts.path, query, {name.lower(): value for name, value in headers.items()})


class Access:
    """Judges requests by one token.  The cookie holds what is derived from it, never the token itself."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._ticket = hmac.new(token.encode(), b"chatlock /ui", hashlib.sha256).hexdigest()

    def granted(self, request: Request) -> bool:
        """Whether the header or the cookie opens the view."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(given.strip(), self._token):
            return True
        try:
            cookie = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and _same(cookie.value, self._ticket)

    def exchanged(self, request: Request) -> dict[str, str] | None:
        """For a right token in the address: the headers that set the cookie and lead to the address without it."""
        given = request.query.get("token")
        if given is None or not _same(given, self._token):
            return None
        rest = urlencode({name: value for name, value in request.query.items() if name != "token"})
        cookie = f"{COOKIE}={self._ticket}; Path={PREFIX}; HttpOnly; SameSite=Strict"
        return {
            "Set-Cookie": cookie,
            "Location": f"{PREFIX}{request.path.removeprefix(PREFIX)}{'?' if rest else ''}{rest}",
        }


def _same(given: str, wanted: str) -> bool:
    """Whether they are equal, told in a time that says nothing of where or by how much they differ."""
    digests = [hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest() for text in (given, wanted)]
    return hmac.compare_digest(*digests)
