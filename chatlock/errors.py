"""Errors are for misuse, broken setup and a lost claim; what happens to a message is told by an outcome.

ChatlockError
 +- ClaimLost            the turn's claim is no longer valid; nothing was written
 +- TurnNotGranted       `turn()` did not get a turn; `.outcome` says why
 +- TurnNotFinished      a turn's block ended without finish; it was charged as a failure
 +- InvalidInput         refused before anything was written
 |   +- MissingTenant    no tenant per call and none on the client
 +- SchemaMismatch       the tables are older or newer than this version admits
 +- StoreUnavailable     the database cannot serve this now; nothing is half written
     +- LoginRefused     the server refused the login, or has no such database
     +- StoreReadOnly    the database or its file cannot be written
     +- StoreFull        the disk or its quota is full
     +- Closed           the client was closed
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chatlock.protocol import Outcome

PACKAGE = str(Path(__file__).parent)


class ChatlockError(Exception):
    """Base of every error that chatlock raises."""


class ClaimLost(ChatlockError):
    """The turn's claim is no longer valid: its lease or window passed, or it was freed, deleted or taken over."""

    def __init__(self, message: str = "this turn's claim is no longer valid; nothing was written") -> None:
        super().__init__(message)


class TurnNotGranted(ChatlockError):
    """`turn()` did not get a turn.  `outcome` is what `begin()` would have returned."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"no turn for this message: {type(outcome).__name__}")
        self.outcome = outcome


class TurnNotFinished(ChatlockError):
    """A turn's block ended without finish, or before the caller's transaction with the finish was committed.

    The turn is charged as a failure, unless that commit still comes.
    """

    def __init__(self, *, uncommitted: bool = False) -> None:
        super().__init__(
            "the turn's block ended before the transaction with turn.finish(reply, conn=..) was committed: commit it"
            " inside the block; the turn is charged as a failure unless that commit still comes"
            if uncommitted
            else "the turn's block ended without turn.finish(reply); the turn was charged as a failure"
        )


class InvalidInput(ChatlockError):
    """An argument breaks a documented limit; nothing was written.  `reason` is a stable word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class MissingTenant(InvalidInput):
    """No tenant was given, per call or on the client."""

    def __init__(self) -> None:
        super().__init__("missing_tenant", "no tenant: pass tenant= per call, or once to the client, from trusted code")


class TransactionNotImmediate(InvalidInput):
    """On SQLite the caller's transaction read before it could take the write lock, and another writer came between."""

    def __init__(self) -> None:
        super().__init__(
            "transaction_not_immediate",
            "the transaction cannot take SQLite's write lock any more: start it with BEGIN IMMEDIATE,"
            " or call this first in it",
        )


class SchemaMismatch(ChatlockError):
    """The tables are missing, older, or newer than this version admits; the message names the remedy."""


class StoreUnavailable(ChatlockError):
    """The database cannot serve this now.  `commit_unknown` is true when a commit was sent and its answer is
    missing.
    """

    def __init__(self, message: str, *, commit_unknown: bool = False) -> None:
        super().__init__(message)
        self.commit_unknown = commit_unknown


class LoginRefused(StoreUnavailable):
    """The server refused the login, or has no such database.  It is not tried again: the URL or the server is wrong."""


class StoreReadOnly(StoreUnavailable):
    """The database, or its file or folder, cannot be written."""


class StoreFull(StoreUnavailable):
    """The disk or its quota is full; the transaction was rolled back."""


class Closed(StoreUnavailable):
    """The client was closed; what was stored stays stored."""

    def __init__(self) -> None:
        super().__init__(
            "this chatlock client is closed, and stays so: make a new one for each start of the application;"
            " messages already accepted stay stored"
        )


def place_of(error: BaseException, call: Callable[..., Any] | None = None) -> str:
    """The error's type and where the application's code raised it, or called what raised it.

    An error's text may hold a payload, its place may not.  What chatlock itself raises holds none: its text is told,
    too, since its place would say nothing.  call: whose doing it is where no line of the application was running.
    """
    frames = [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    ours = bool(frames) and frames[-1][0].startswith(PACKAGE)
    own = [frame for frame in frames if not frame[0].startswith(PACKAGE)] if ours else frames
    if not own and call is not None:
        own = _place_of_definition(call)
    where = "".join(f" at {filename}:{line} in {name}" for filename, line, name in (own or frames)[-1:])
    reason = f" ({error.reason})" if isinstance(error, InvalidInput) else ""
    text = f": {error}" if ours and isinstance(error, ChatlockError) else ""
    return f"{type(error).__name__}{reason}{where}{text}"


def _place_of_definition(call: Callable[..., Any]) -> list[tuple[str, int | None, str]]:
    plain = inspect.unwrap(call)
    while isinstance(plain, functools.partial):
        plain = inspect.unwrap(plain.func)
    code = getattr(plain, "__code__", None) or getattr(type(plain).__call__, "__code__", None)
    return [] if code is None else [(code.co_filename, code.co_firstlineno, code.co_name)]
