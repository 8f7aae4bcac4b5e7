"""The typed error for each fault of a database: it names the remedy, and holds no SQL, parameter or URL."""

from __future__ import annotations

from chatlock.dialects import Fault
from chatlock.errors import ChatlockError, LoginRefused, SchemaMismatch, StoreFull, StoreReadOnly, StoreUnavailable

REMEDIES: dict[Fault, tuple[type[ChatlockError], str]] = {
    Fault.NO_SCHEMA: (
        SchemaMismatch,
        "chatlock's tables are missing or old; run `chatlock db upgrade`, or call setup()",
    ),
    Fault.MOVED: (
        SchemaMismatch,
        "this store was moved by `chatlock export`; nothing was written; use the URL of the new one",
    ),
    Fault.FULL: (
        StoreFull,
        "the database's disk or quota is full; nothing was written; free space and try again",
    ),
    Fault.READ_ONLY: (
        StoreReadOnly,
        "the database cannot be written; check the permissions of its file and folder, or of the role, and that the URL"
        " is not that of a replica",
    ),
    Fault.RETRY: (
        StoreUnavailable,
        "the database stayed locked by another writer for too long; nothing was written; end that writer, or try again",
    ),
    Fault.LOCKED: (
        StoreUnavailable,
        "the database stayed locked by another transaction for too long; nothing was written; look for one with conn="
        " that was neither committed nor rolled back, end it, or try again",
    ),
    Fault.DISCONNECT: (
        StoreUnavailable,
        "the database cannot be reached; check that it runs, and the host, port, user, password and name in its URL",
    ),
    Fault.LOGIN: (
        LoginRefused,
        "the server refused the login; check the user and password in the database's URL, and what the server's"
        " pg_hba.conf lets in",
    ),
    Fault.NO_DATABASE: (
        LoginRefused,
        "the server has no such database; check the database's name in its URL, or create it and run `chatlock db"
        " upgrade`",
    ),
    Fault.TOO_MANY: (
        StoreUnavailable,
        "the server has no connection left for this role or database; lower pool_size, run fewer processes, or raise"
        " the limit (CONNECTION LIMIT, max_connections)",
    ),
    Fault.CANNOT_OPEN: (
        StoreUnavailable,
        "the database file cannot be opened; check that its folder exists and may be read and written",
    ),
    Fault.NOT_A_DATABASE: (
        StoreUnavailable,
        "the file is not a SQLite database, or it is damaged; check the path in the URL, or restore a backup",
    ),
    Fault.DISK: (
        StoreUnavailable,
        "the disk under the database reported an error; check the disk, then try again",
    ),
}


def typed_error(error: BaseException, fault: Fault, *, commit_unknown: bool = False) -> ChatlockError:
    """What a caller is told of a driver's error."""
    if fault in REMEDIES:
        kind, text = REMEDIES[fault]
        return kind(text, commit_unknown=commit_unknown) if issubclass(kind, StoreUnavailable) else kind(text)
    orig = getattr(error, "orig", None) or error
    code = getattr(orig, "sqlstate", None) or getattr(orig, "sqlite_errorname", None) or type(orig).__name__
    return StoreUnavailable(f"the database refused the operation ({code}); nothing was written")
