"""Each failure of the store is one typed error that names the remedy; nothing is lost, and nothing secret is told.

A file that stays locked is in test_load.py, a full disk in cases/test_full_store.py, the caller's own connection in
conformance/test_own_transaction.py, a store that was moved in cli/test_move.py.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
import shutil
import sqlite3
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import make_url
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from chatlock import (
    AlreadyAnswered,
    AsyncChatlock,
    Chatlock,
    InvalidInput,
    SchemaMismatch,
    StoreUnavailable,
    executor,
)
from chatlock.cli import main
from chatlock.errors import ChatlockError, LoginRefused, StoreReadOnly
from chatlock.inputs import Key, key_hash
from tests.acceptance.life import AT_ONCE, read, until
from tests.support import servers
from tests.support.databases import Database, connect
from tests.support.processes import Child

if TYPE_CHECKING:
    from tests.support.databases import Templates

TENANT = "t"
PAYLOAD, PASSWORD = "canary-payload", "canary-password"
SQL = re.compile(r"\b(SELECT .* FROM|INSERT INTO|UPDATE \w+ SET|DELETE FROM|PRAGMA)\b", re.IGNORECASE)
NOBODY = 65534
NOWHERE = f"postgresql://u:{PASSWORD}@127.0.0.1:1/db"


class Ears(logging.Handler):
    """Everything that chatlock's loggers say, with fields and tracebacks."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = " ".join(f"{name}={value}" for name, value in vars(record).items())
        self.said.append(f"{self.format(record)} {fields}")


@pytest.fixture(autouse=True)
def ears() -> Iterator[Ears]:
    """Whatever a test does, no payload, password or statement is logged."""
    heard, logger = Ears(), logging.getLogger("chatlock")
    before, logger.level = logger.level, logging.DEBUG
    logger.addHandler(heard)
    yield heard
    logger.removeHandler(heard)
    logger.setLevel(before)
    assert not [text for text in heard.said if leaks(text)]


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is away is given up after one more attempt."""
    monkeypatch.setattr(executor, "RECONNECTS_MAX", 1)


def leaks(text: str) -> bool:
    return PAYLOAD in text or PASSWORD in text or SQL.search(text) is not None


def submit(world: str, url: Any, message_id: str = "m1") -> Any:
    """One message, from a new client of the world; nobody runs it."""
    options: dict[str, Any] = {"message_id": message_id, "wait_ms": 0}

    async def in_loop() -> Any:
        async with AsyncChatlock(url, tenant=TENANT, poller=False) as chat:
            return await chat.submit("thread", {"text": PAYLOAD}, **options)

    if world == "async":
        return asyncio.run(in_loop())
    with Chatlock(url, tenant=TENANT, poller=False) as chat:
        return chat.submit("thread", {"text": PAYLOAD}, **options)


def told(call: Callable[[], object], kind: type[ChatlockError], remedy: str) -> ChatlockError:
    """The one error of exactly this kind, whose text names the remedy; its traceback holds no secret either."""
    with pytest.raises(kind, match=remedy) as caught:
        call()
    assert type(caught.value) is kind
    shown = "".join(traceback.format_exception(caught.value))
    assert not leaks(str(caught.value)), caught.value
    assert PAYLOAD not in shown, shown
    assert PASSWORD not in shown, shown
    return caught.value


def stored(database: Database) -> list[str]:
    """The ids of the messages that are pending."""
    rows = read(database, "SELECT message_id FROM chatlock_messages WHERE disposition = 'pending' ORDER BY seq")
    return [row["message_id"] for row in rows]


# -- what stands in the way ----------------------------------------------------------------------------------------
class Fails(NamedTuple):
    """How a store is broken, given its database and whether PostgreSQL or SQLite; what mends it; what is told."""

    kind: type[ChatlockError]
    remedy: str
    breaks: tuple[str, ...]
    mends: tuple[str, ...]


OLD = "UPDATE chatlock_alembic_version SET version_num = '0001'"
NEW = "UPDATE chatlock_alembic_version SET version_num = '9999'"
BACK = "UPDATE chatlock_alembic_version SET version_num = (SELECT max(version_num) FROM kept)"
KEPT = "CREATE TABLE kept AS SELECT version_num FROM chatlock_alembic_version"
BY_STATEMENTS = {
    "schema too old": Fails(SchemaMismatch, "at revision 1 .* run `chatlock db upgrade`", (KEPT, OLD), (BACK,)),
    "schema too new": Fails(
        SchemaMismatch,
        "too new for this version .* upgrade the chatlock package",
        (KEPT, NEW, "UPDATE chatlock_meta SET value = 9999 WHERE name = 'min_client'"),
        (BACK, "UPDATE chatlock_meta SET value = 1 WHERE name = 'min_client'"),
    ),
    "tables gone": Fails(
        SchemaMismatch,
        "run `chatlock db upgrade`",
        ("ALTER TABLE chatlock_messages RENAME TO away",),
        ("ALTER TABLE away RENAME TO chatlock_messages",),
    ),
}


@pytest.mark.parametrize("fails", BY_STATEMENTS.values(), ids=list(BY_STATEMENTS))
@pytest.mark.parametrize("world", ["sync", "async"])
def test_schema_that_does_not_fit_names_the_way_to_upgrade(database: Database, world: str, fails: Fails) -> None:
    submit(world, database.url, "before")
    for statement in fails.breaks:
        database.connect().execute(statement)
    told(lambda: submit(world, database.url), fails.kind, fails.remedy)
    for statement in fails.mends:
        database.connect().execute(statement)
    assert stored(database) == ["before"]
    submit(world, database.url)
    assert stored(database) == ["before", "m1"]


@pytest.mark.parametrize("world", ["sync", "async"])
def test_empty_database_names_setup(empty_database: Database, world: str) -> None:
    told(lambda: submit(world, empty_database.url), SchemaMismatch, r"no chatlock tables; .* setup\(\)")


@pytest.mark.parametrize("world", ["sync", "async"])
def test_database_that_is_read_only_by_its_url_or_settings(database: Database, world: str) -> None:
    submit(world, database.url, "before")
    url = database.url
    if database.kind == "sqlite":
        url = f"{url.replace(':///', ':///file:')}?mode=ro&uri=true"
    else:
        name = url.rpartition("/")[2]
        database.connect().execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    told(lambda: submit(world, url), StoreReadOnly, "cannot be written; check the permissions")
    assert stored(database) == ["before"]


def test_trigger_of_the_application_is_no_store_that_was_moved(sqlite_database: Database) -> None:
    sqlite_database.connect().execute(
        "CREATE TRIGGER mine BEFORE INSERT ON chatlock_messages BEGIN SELECT RAISE(ABORT, 'canary-payload'); END"
    )
    told(lambda: submit("sync", sqlite_database.url), StoreUnavailable, "refused the operation .*TRIGGER")
    assert stored(sqlite_database) == []


# -- files -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("world", ["sync", "async"])
def test_missing_folder_is_named(tmp_path: Path, world: str) -> None:
    url = f"sqlite:///{tmp_path}/missing/chat.db"
    told(lambda: submit(world, url), StoreUnavailable, "no such SQLite file; check its path and folder")
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("world", ["sync", "async"])
@pytest.mark.parametrize("content", [b"canary-payload, and no database\n" * 500, b"SQLite format 3\0" + b"\1" * 8000])
def test_file_that_is_no_database_is_left_as_it_is(tmp_path: Path, world: str, content: bytes) -> None:
    path = tmp_path / "letter.txt"
    path.write_bytes(content)
    told(lambda: submit(world, f"sqlite:///{path}"), StoreUnavailable, "not a SQLite database, or it is damaged")
    assert path.read_bytes() == content


def test_folder_in_place_of_a_file(tmp_path: Path) -> None:
    told(lambda: submit("sync", f"sqlite:///{tmp_path}"), StoreUnavailable, "cannot be opened")


@pytest.fixture
def shut(templates: Templates) -> Iterator[Path]:
    """A folder that everybody can reach, with a database that holds a message; modes are put back at the end."""
    folder = Path(tempfile.mkdtemp(prefix="chatlock-shut-"))
    folder.chmod(0o755)
    shutil.copyfile(templates.prepare_sqlite(), folder / "chat.db")
    submit("sync", f"sqlite:///{folder}/chat.db", "before")
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def powerless() -> None:
    """Root ignores modes."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


MODES = {"file": (0o444, 0o777), "folder": (0o666, 0o555), "both": (0o444, 0o555), "unreadable": (0o000, 0o755)}


@pytest.mark.parametrize("what", MODES)
def test_file_or_folder_without_rights_is_named(shut: Path, what: str, child: Callable[[Child], Child]) -> None:
    of_file, of_folder = MODES[what]
    (shut / "chat.db").chmod(of_file)
    shut.chmod(of_folder)

    def attempt() -> None:
        powerless()
        told(lambda: submit("sync", f"sqlite:///{shut}/chat.db"), *RIGHTS[what])

    process = child(Child.fork(attempt))
    assert process.wait() == 0, process.text
    shut.chmod(0o755)
    (shut / "chat.db").chmod(0o644)
    with closing(sqlite3.connect(shut / "chat.db")) as connection:
        assert connection.execute("SELECT message_id FROM chatlock_messages").fetchall() == [("before",)]


RIGHTS: dict[str, tuple[type[ChatlockError], str]] = {
    "file": (StoreReadOnly, "check the permissions of its file and folder"),
    "folder": (StoreReadOnly, "check the permissions of its file and folder"),
    "both": (StoreReadOnly, "check the permissions of its file and folder"),
    "unreadable": (StoreUnavailable, "check that its folder exists and may be read and written"),
}


def test_control_rights_do_not_stand_in_the_way_of_whoever_has_them(shut: Path) -> None:
    assert stat.S_IMODE((shut / "chat.db").stat().st_mode) & 0o200
    submit("sync", f"sqlite:///{shut}/chat.db")


# -- servers -----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def own_server() -> Iterator[servers.PostgreSQL]:
    """A PostgreSQL that asks `guarded` for a password, and that these tests may stop."""
    with servers.PostgreSQL() as server:
        with Chatlock(server.url, tenant=TENANT, poller=False) as chat:
            chat.setup()
        rules = server.data / "pg_hba.conf"
        rules.write_text(f"host all guarded 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        with closing(connect(server.url)) as connection:
            connection.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
            connection.execute("SELECT pg_reload_conf()")
        yield server


def guarded(server: servers.PostgreSQL, password: str) -> str:
    return server.url.replace("postgres@", f"guarded:{password}@")


@pytest.mark.parametrize("world", ["sync", "async"])
def test_wrong_password_and_missing_rights(own_server: servers.PostgreSQL, world: str) -> None:
    until(lambda: asks_for_a_password(own_server), what="the new rules of the server")
    told(lambda: submit(world, guarded(own_server, PASSWORD)), LoginRefused, "refused the login; check the user")
    no_password = own_server.url.replace("postgres@", "guarded@")
    told(lambda: submit(world, no_password), LoginRefused, "refused the login; check the user")
    nowhere = make_url(own_server.url).set(database=PASSWORD)
    told(lambda: submit(world, nowhere), LoginRefused, "has no such database; check the database's name")
    told(lambda: submit(world, guarded(own_server, "right")), StoreReadOnly, "permissions .* of the role")


REFUSED = {PASSWORD: "the server refused the login", "right": "the server has no such database"}


@pytest.mark.parametrize("password", REFUSED)
def test_commands_tell_a_refused_login_from_an_outage(own_server: servers.PostgreSQL, password: str) -> None:
    until(lambda: asks_for_a_password(own_server), what="the new rules of the server")
    url = make_url(guarded(own_server, password))
    env = {"CHATLOCK_URL": (url if password == PASSWORD else url.set(database=PASSWORD)).render_as_string(False)}
    for command, code in (["db", "check"], 2), (["doctor"], 1):
        result = CliRunner(env=env).invoke(main, command)
        assert (result.exit_code, REFUSED[password] in result.output) == (code, True), result.output
        assert PASSWORD not in result.output


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_login_that_is_refused_to_the_callers_own_connection(own_server: servers.PostgreSQL, driver: str) -> None:
    until(lambda: asks_for_a_password(own_server), what="the new rules of the server")

    async def store(url: Any) -> None:
        engine = create_async_engine(url)
        async with AsyncChatlock(own_server.url, tenant=TENANT, poller=False) as chat, AsyncSession(engine) as session:
            await chat.submit("thread", PAYLOAD, conn=session)

    wrong = make_url(guarded(own_server, PASSWORD)).set(drivername=f"postgresql+{driver}")
    told(lambda: asyncio.run(store(wrong)), LoginRefused, "refused the login")
    nowhere = make_url(own_server.url).set(drivername=f"postgresql+{driver}", database=PASSWORD)
    told(lambda: asyncio.run(store(nowhere)), LoginRefused, "no such database")


def asks_for_a_password(server: servers.PostgreSQL) -> bool:
    with suppress(psycopg.OperationalError):
        connect(guarded(server, "wrong")).close()
        return False
    return True


@pytest.mark.parametrize("world", ["sync", "async"])
@pytest.mark.parametrize("where", [NOWHERE, NOWHERE.replace("127.0.0.1", "host.invalid")])
def test_server_that_cannot_be_reached(world: str, where: str) -> None:
    told(lambda: submit(world, where), StoreUnavailable, "cannot be reached; check that it runs")


@pytest.mark.parametrize("world", ["sync", "async"])
def test_restart_of_the_server_in_the_middle(own_server: servers.PostgreSQL, world: str) -> None:
    """While it is away calls are refused and store nothing; then the same client goes on, and so does its turn."""
    if world == "async":
        asyncio.run(_restarted_async(own_server))
        return
    with Chatlock(own_server.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat:
        turn: Any = chat.begin(world, PAYLOAD, message_id="m1")
        own_server.kill()
        told(lambda: chat.status(world, "m1"), StoreUnavailable, "cannot be reached")
        told(lambda: chat.submit("other", PAYLOAD, message_id="m2", wait_ms=0), StoreUnavailable, "cannot be reached")
        told(lambda: turn.finish(PAYLOAD), StoreUnavailable, "cannot be reached")
        own_server.start()
        assert type(chat.status("other", "m2")).__name__ == "NotFound"
        turn.finish("done")
        assert isinstance(chat.status(world, "m1"), AlreadyAnswered)
        assert chat.verify().ok


async def _restarted_async(server: servers.PostgreSQL) -> None:
    async with AsyncChatlock(server.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat:
        turn: Any = await chat.begin("async", PAYLOAD, message_id="m1")
        server.kill()
        for call in (chat.status("async", "m1"), chat.submit("other", PAYLOAD, message_id="m2", wait_ms=0)):
            with pytest.raises(StoreUnavailable, match="cannot be reached") as refused:
                await call
            assert not leaks(str(refused.value))
        server.start()
        assert type(await chat.status("other", "m2")).__name__ == "NotFound"
        await turn.finish("done")
        assert isinstance(await chat.status("async", "m1"), AlreadyAnswered)


# -- URLs and drivers --------------------------------------------------------------------------------------------------
BAD_URLS = {
    "nonsense": ("nonsense canary-password", "cannot be parsed"),
    "no text": (None, "cannot be parsed"),
    "a number": (7, "cannot be parsed"),
    "bytes": (b"sqlite:///chat.db", "cannot be parsed"),
    "empty": ("", "cannot be parsed"),
    "port": ("postgresql://u:canary-password@host:canary-password/db", "cannot be parsed"),
    "mysql": ("mysql://u:canary-password@host/db", "postgresql and sqlite"),
    "unknown": ("canary://u:canary-password@host/db", "postgresql and sqlite"),
    "no file": ("sqlite://", "give a file"),
    "memory": ("sqlite:///:memory:", "give a file"),
    "memory by name": ("sqlite:///file:x?mode=memory&uri=true", "give a file"),
    "memory as a file": ("sqlite:///file::memory:?uri=true", "give a file"),
}


@pytest.mark.parametrize(("url", "remedy"), BAD_URLS.values(), ids=list(BAD_URLS))
@pytest.mark.parametrize("client", [Chatlock, AsyncChatlock])
def test_bad_url_is_refused_before_anything_is_opened(client: Any, url: Any, remedy: str) -> None:
    error = told(lambda: client(url, tenant=TENANT), InvalidInput, remedy)
    assert isinstance(error, InvalidInput)
    assert error.reason == "bad_url"


@pytest.mark.parametrize("how", ["not installed", "without libpq"])
@pytest.mark.parametrize("world", ["sync", "async"])
def test_missing_driver_names_what_to_install(monkeypatch: pytest.MonkeyPatch, how: str, world: str) -> None:
    if how == "not installed":
        monkeypatch.setitem(sys.modules, "psycopg", None)
    else:

        def without_libpq() -> Any:
            raise ImportError("no pq wrapper available")

        monkeypatch.setattr(PGDialect_psycopg, "import_dbapi", without_libpq)
    told(lambda: submit(world, NOWHERE), StoreUnavailable, r"with its extra 'postgres'")


# -- what is logged ----------------------------------------------------------------------------------------------------
def test_nothing_secret_is_logged_whatever_user_code_raises(sqlite_database: Database, ears: Ears) -> None:
    """A handler, a callback, a subscriber and a delivery that fail with what must not be told."""

    def fail(*args: Any) -> Any:
        raise ValueError(PAYLOAD)

    def lose(turn: Any) -> Any:
        turn.on_lost(fail)
        assert chat.delete("lost").done
        turn.finish(PAYLOAD)

    with Chatlock(sqlite_database.url, tenant=TENANT, limits=AT_ONCE) as chat:
        chat.subscribe(fail)
        chat.handler()(fail)
        chat.handler("loses")(lose)
        chat.handler("delivers")(lambda turn: PAYLOAD)
        chat.deliver("delivers")(fail)
        chat.submit("thread", PAYLOAD, wait_ms=0)
        chat.submit("lost", PAYLOAD, agent="loses", wait_ms=0)
        chat.submit("sent", PAYLOAD, agent="delivers")
        for event in ("hook.failed", "turn.failed", "turn.on_lost_failed", "intent.failed"):
            until(lambda event=event: [text for text in ears.said if text.startswith(event)], what=event)


def test_line_of_a_failed_turn_names_the_reason_and_the_handler(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def returns(turn: Any) -> Any:
        return {1}

    def finishes(turn: Any) -> Any:
        turn.finish({1})

    def raises(turn: Any) -> Any:
        raise ValueError(PAYLOAD)

    refused = ": reply holds a value of type set, which JSON cannot carry: make it of str, int, "
    expected = {
        "returns": (functools.partial(returns), f"InvalidInput (not_json) at {line_of(returns)} in returns{refused}"),
        "finishes": (finishes, f"InvalidInput (not_json) at {line_of(finishes, 1)} in finishes{refused}"),
        "raises": (raises, f"ValueError at {line_of(raises, 1)} in raises"),
    }
    with Chatlock(sqlite_database.url, tenant=TENANT, poller=False) as chat:
        for agent, (handler, line) in expected.items():
            caplog.clear()
            chat.handler(agent)(handler)
            chat.submit(agent, PAYLOAD, agent=agent, wait_ms=0)
            (told,) = caplog.records
            assert told.message.startswith(f"turn.failed: {line}")
            assert vars(told).items() >= {
                ("thread_hash", key_hash(Key(TENANT, agent))[:12]), ("token", 1), ("agent", agent)
            }  # fmt: skip


def line_of(function: Any, below: int = 0) -> str:
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno + below}"


def test_control_a_leak_is_heard(ears: Ears) -> None:
    logging.getLogger("chatlock.anything").warning("fields", extra={"field": PAYLOAD})
    logging.getLogger("chatlock").warning("SELECT token FROM chatlock_threads")
    assert [leaks(text) for text in ears.said] == [True, True]
    ears.said.clear()
