"""How a dispatched wake-up is signed: `Chatlock-Signature: t=SECONDS,v1=hex(HMAC-SHA256(secret, "SECONDS.body"))`."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence

from chatlock.errors import InvalidInput

HEADER = "Chatlock-Signature"
TOLERANCE_S = 300

_FORM = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})", re.ASCII)


def sign(secret: str, at_s: int, body: bytes) -> str:
    """The header's value."""
    return f"t={at_s},v1={_mac(secret, at_s, body)}"


def check(value: str | None, body: bytes, secrets: Sequence[str], now_s: float) -> None:
    """Raises InvalidInput unless the value signs the body by one of the secrets, at most 5 minutes from now."""
    form = _FORM.fullmatch(value or "")
    if form is None:
        raise InvalidInput("bad_signature", f"{HEADER} is missing or malformed")
    at_s, given = int(form[1]), form[2]
    if not any(hmac.compare_digest(given, _mac(secret, at_s, body)) for secret in secrets):
        raise InvalidInput("bad_signature", f"{HEADER} does not sign this body by a known secret")
    if abs(now_s - at_s) > TOLERANCE_S:
        raise InvalidInput("old_signature", f"{HEADER} is more than {TOLERANCE_S} s away from now")


def _mac(secret: str, at_s: int, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
