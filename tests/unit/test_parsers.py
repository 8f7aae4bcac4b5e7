"""Whatever a stranger sends, a parser gives a value within its limits or the one error that it documents."""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sqlalchemy.engine import URL

from chatlock import Chatlock
from chatlock.cli.output import duration, shell_quoted, visible
from chatlock.errors import ChatlockError, ClaimLost, InvalidInput, SchemaMismatch, StoreUnavailable
from chatlock.executor import Executor
from chatlock.hosting import load_chat
from chatlock.inputs import INTEGER_MAX, Key, checked_id, from_json, payload_json, reply_json
from chatlock.middleware import asked
from chatlock.middleware.endpoints import _is_after
from chatlock.middleware.problems import answer_to_error
from chatlock.middleware.socket import _wish_of, same_origin
from chatlock.replay import Arrival, read_arrivals, replay
from chatlock.service.receiver import verify
from chatlock.service.signature import HEADER, sign
from chatlock.service.ui.access import Access, Request
from chatlock.settings import Settings
from chatlock.testing import History
from chatlock.transfer import TransferRefused, export_store, import_store
from chatlock.urls import checked_url, surely_apart
from tests.support import scaled
from tests.support.databases import Templates

quick = settings(max_examples=scaled(60, 5_000), deadline=None)
texts = st.text(max_size=200)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
DIGITS = "9" * 5_000
"""More than int() takes."""


def parsed(parse: Callable[[], Any], error: type[Exception] = InvalidInput) -> Any:
    """The value, or None after the documented error."""
    try:
        return parse()
    except error:
        return None


def about(form: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Texts that are almost right, beside any other."""
    return texts | st.tuples(*parts).map(lambda given: form.format(*given))


# -- headers -----------------------------------------------------------------------------------------------------------
@quick
@given(about('"{}"', texts))
@example('"' + "\\" * 199)
def test_idempotency_key(header: str) -> None:
    key = parsed(lambda: asked.idempotency_key(header))
    assert key is None or (isinstance(key, str) and "/" not in key)


@quick
@given(about("respond-async, wait={}", texts))
@example(f"wait={DIGITS}")
def test_prefer(header: str) -> None:
    assert 0 <= asked.wait_ms_of(header) <= asked.WAIT_MS_MAX
    assert re.fullmatch(r"(respond-async)?(, )?(wait=[0-9]+)?", asked.applied_of(header))


@pytest.mark.parametrize(
    ("prefer", "applied"),
    [
        (None, ""),
        ("handling=strict", ""),
        ("wait=600", "wait=600"),
        ("wait=٣", "wait=3"),
        ("wait=601, respond-async", "respond-async"),
    ],
)
def test_only_a_preference_that_was_sent_and_honored_is_told(prefer: str | None, applied: str) -> None:
    assert asked.applied_of(prefer) == applied


@quick
@given(about('"{}-{}"', st.integers().map(str), st.integers().map(str)))
@example(f'"{DIGITS}-{DIGITS}"')
def test_if_match(header: str) -> None:
    token = parsed(lambda: asked.turn_of(header))
    assert token is None or 0 <= token < INTEGER_MAX


@quick
@given(st.integers(0, 99), about("claim-{}", st.integers().map(str)))
@example(1, f"claim-{DIGITS}")
@example(1, "claim-\N{ARABIC-INDIC DIGIT TWO}")
def test_last_event_id(number: int, header: str) -> None:
    assert isinstance(_is_after(f"claim-{number}", header), bool)


@quick
@given(about("https://{}", texts))
@example("https://[::1")
@example("https://\N{DOUBLE QUESTION MARK}")
def test_origin(origin: str) -> None:
    assert same_origin({"origin": origin, "host": "chat.example"}) in (True, False)
    assert not same_origin({"origin": origin + ".evil.example", "host": "chat.example"})


@quick
@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)), max_size=4))
def test_raw_headers(raw: list[tuple[bytes, bytes]]) -> None:
    headers = asked.headers_of(raw)
    found = parsed(lambda: asked.Asked.of(headers))
    assert found is None or found.message_id


@quick
@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
@example(DIGITS.encode())
@example(b"[" * 100_000)
@example(b"NaN")
def test_bodies_and_what_is_sent_over_a_socket(body: bytes) -> None:
    value = parsed(lambda: asked.payload_of(body))
    assert json.dumps(value, allow_nan=False)
    wish = parsed(lambda: _wish_of(body.decode("utf-8", "replace")))
    assert wish is None or wish[0]["do"] in ("submit", "follow", "cancel")


CANARY = "canary-7f3a"
REFUSED: dict[str, Callable[[], Any]] = {
    "thread": lambda: checked_id(f"{CANARY}\n", "thread"),
    "long thread": lambda: checked_id(CANARY * 99, "thread"),
    "payload": lambda: payload_json({CANARY: {CANARY}}),
    "number": lambda: payload_json({CANARY: [CANARY, 2**60]}),
    "text": lambda: payload_json([f"{CANARY}\0"]),
    "reply": lambda: reply_json({CANARY: float("nan")}),
    "key": lambda: asked.idempotency_key(f'"{CANARY}'),
    "slash": lambda: asked.idempotency_key(f"{CANARY}/.."),
    "etag": lambda: asked.turn_of(CANARY),
    "body": lambda: asked.payload_of(CANARY),
    "type": lambda: asked.check_json({"content-type": CANARY}),
    "wish": lambda: _wish_of(json.dumps({"do": CANARY, CANARY: CANARY})),
    "signature": lambda: verify({HEADER: CANARY}, CANARY.encode(), [CANARY], now_s=0),
    "signed": lambda: verify({HEADER: sign(CANARY, 0, b"[1]")}, b"[1]", [CANARY], now_s=0),
    "url": lambda: checked_url(f"nothing://{CANARY}:{CANARY}@host/db"),
    "arrivals": lambda: read_arrivals(["thread,offset_s", f"{CANARY},{CANARY}"]),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_is_refused_is_not_repeated(refused: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        REFUSED[refused]()
    answer = answer_to_error(raised.value)
    assert answer.status in (400, 413, 415)
    assert CANARY not in f"{raised.value!r} {answer.content()!r} {answer.headers}"
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("kind", [StoreUnavailable, SchemaMismatch, ClaimLost])
def test_what_went_wrong_inside_is_not_told_outside(kind: type[ChatlockError]) -> None:
    answer = answer_to_error(kind(f"postgresql://u:{CANARY}@host"))
    assert answer.status >= 500
    assert CANARY.encode() not in answer.content()


# -- the dispatch ------------------------------------------------------------------------------------------------------
@quick
@given(texts, st.binary(max_size=100))
@example(f"t={DIGITS},v1={'0' * 64}", b"")
def test_signature_is_never_guessed(header: str, body: bytes) -> None:
    assert parsed(lambda: verify({HEADER: header}, body, ["secret"], now_s=0)) is None


@quick
@given(st.binary(max_size=100) | json_values.map(lambda value: json.dumps(value).encode()))
@example(b'{"tenant": 1, "thread": "t"}')
@example(DIGITS.encode())
def test_a_signed_body_names_a_thread_or_is_refused(body: bytes) -> None:
    key = parsed(lambda: verify({HEADER: sign("secret", 5, body)}, body, ["secret"], now_s=5))
    assert key is None or isinstance(key, Key)
    assert parsed(lambda: verify({HEADER: sign("secret", 5, body)}, body + b" ", ["secret"], now_s=5)) is None


@quick
@given(texts, texts)
@example("//[", "Bearer ")
@example("?token=", f"chatlock_ui={'0' * 64}")
def test_the_web_view_opens_to_nobody_without_the_token(target: str, header: str) -> None:
    access = Access("a token that nobody guesses")
    request = Request.of(f"/ui{target}", {"Authorization": header, "Cookie": header})
    assert not access.granted(request)
    assert access.exchanged(request) is None


# -- an operator's words -----------------------------------------------------------------------------------------------
@quick
@given(about("{}{}", st.integers().map(str), st.sampled_from(["ms", "s", "m", "h", "d"])))
@example(f"{DIGITS}d")
@example("\N{ARABIC-INDIC DIGIT TWO}s")
def test_durations(text: str) -> None:
    ms = parsed(lambda: duration(text), click.BadParameter)
    assert ms is None or 0 <= ms <= INTEGER_MAX


@quick
@given(texts)
def test_what_is_shown_is_harmless(text: str) -> None:
    assert visible(text).isprintable()
    assert shell_quoted(text).isprintable()


@quick
@given(about("{}://{}@{}/{}", texts, texts, texts, texts))
@example("postgresql://u:p@host:port/db")
@example("sqlite://")
def test_database_urls(text: str) -> None:
    url = parsed(lambda: checked_url(text))
    assert url is None or isinstance(url, URL)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite+pysqlcipher://:secret@/chat.db",
        "sqlite+nothing:///chat.db",
        "postgresql+pg8000://u@db/app",
        "mysql://u@db/app",
        "sqlite:///a\0b.db",
        "sqlite:///\ud800.db",
        "postgresql://u:\ud800@db/app",
        "postgresql://u@db/app?host=a%00b",
    ],
)
def test_url_of_what_chatlock_would_not_do_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        checked_url(url)
    assert refused.value.reason == "bad_url"


def test_relative_path_without_a_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(InvalidInput, match="relative"):
        checked_url("sqlite:///chat.db")


APART = [
    ("sqlite:///chat.db", "postgresql://u@db/app"),
    ("sqlite:///chat.db", "sqlite:///other/chat.db"),
    ("sqlite:///chat.db", "sqlite:///file:other%2Fchat.db?uri=true"),
    ("postgresql://u@db/app", "postgresql+psycopg://u@db:5432/other"),
    ("postgresql://u@/app?host=/run/db", "postgresql://u@/other?host=/run/db&port=5432"),
]
MAYBE_ONE = [
    ("sqlite:///chat.db", "sqlite:///./other/../chat.db"),
    ("sqlite:///chat.db", "sqlite:///file:chat.db?uri=true"),
    ("postgresql://u:one@db/app", "postgresql+psycopg://v:two@db:5432/app"),
    ("postgresql://u@db/app", "postgresql://u@pooler:6432/app_pool"),  # a server may have many names
    ("postgresql://u@db/app", "postgresql://u@db"),  # PGDATABASE may name it
    ("postgresql://u@db/app", "postgresql://u@db/other?dbname=app"),
]


@pytest.mark.parametrize(("one", "other"), [*APART, *MAYBE_ONE])
def test_urls_of_two_databases_are_told_apart(one: str, other: str) -> None:
    urls = checked_url(one), checked_url(other)
    assert surely_apart(*urls) == surely_apart(*reversed(urls)) == ((one, other) in APART)


@quick
@given(about("{}:{}", texts, texts))
@example("..:chat")
@example(".:chat")
@example("a\0b:chat")
def test_chat_paths(text: str) -> None:
    assert parsed(lambda: load_chat(text)) is None


@quick
@given(st.dictionaries(st.sampled_from(sorted(Settings.model_fields)), texts | st.integers().map(str)))
def test_settings(told: dict[str, Any]) -> None:
    found = parsed(lambda: Settings(_env_file=None, **{"url": "sqlite:///chat.db", **told}), ValidationError)
    assert found is None or 3 * found.beat_ms <= found.lease_ms


# -- files -------------------------------------------------------------------------------------------------------------
@quick
@given(st.lists(about("{},{}", texts, st.floats().map(str)), max_size=5))
@example(["t,1e999"])
@example([f"{'x' * 200_000},1"])
@example(['"t\n1'])
@example(["t"])
def test_arrivals(lines: list[str]) -> None:
    found = parsed(lambda: read_arrivals(["thread,offset_s", *lines]))
    assert found is None or all(isinstance(arrival, Arrival) for arrival in found)
    if found:
        assert replay(found, run_ms=1_000).messages == len(found)


@quick
@given(st.lists(texts, min_size=1, max_size=5), st.integers(1, 50))
def test_a_history_whose_process_was_killed(payloads: list[str], cut: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "history.jsonl"
        history = History(name="p", path=path)
        for payload in payloads:
            history.asked(Key("acme", "t"), "submit", "m", payload)
        whole = History.read(path).events
        assert [event["payload"] for event in whole] == payloads
        path.write_bytes(path.read_bytes()[:-cut])
        left = History.read(path).events
        assert left == whole[: len(left)]
        assert len(left) >= len(payloads) - 1


@pytest.fixture(scope="module")
def export(templates: Templates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[bytes, Path]]:
    """An export with a row in it, and a place for others."""
    directory = tmp_path_factory.mktemp("export")
    store = templates.sqlite(directory / "from.db")
    with Chatlock(store.url, tenant="acme", poller=False) as chat:
        chat.submit("t", {"text": "hello"}, message_id="m", wait_ms=0)
        export_store(chat._executor, directory / "export.jsonl", force=False, progress=lambda table, rows: None)
    yield (directory / "export.jsonl").read_bytes(), directory
    store.dispose()


def altered(whole: bytes, seed: int) -> bytes:
    """Some bytes are another, or gone, or there twice."""
    chance, changed = random.Random(seed), bytearray(whole)
    for _ in range(chance.choice([1, 1, 3])):
        at = chance.randrange(len(changed))
        match chance.choice(["byte", "cut", "line", "end"]):
            case "byte":
                changed[at] = chance.randrange(256)
            case "cut":
                del changed[at : at + chance.choice([1, 20])]
            case "line":
                lines = changed.splitlines(keepends=True)
                lines.insert(chance.randrange(len(lines)), chance.choice([*lines, b"5\n", b"[]\n", b"\n", b"[" * 9999]))
                changed = bytearray(b"".join(lines))
            case "end":
                del changed[at:]
    return bytes(changed)


def test_an_altered_export_is_refused_and_nothing_is_written(export: tuple[bytes, Path], templates: Templates) -> None:
    whole, directory = export
    path = directory / "altered.jsonl"
    into = templates.sqlite(directory / "into.db")
    executor = Executor(into.url, pool_size=1, pooler=None)
    for seed in range(scaled(40, 2_000)):
        changed = altered(whole, seed)
        path.write_bytes(changed)
        if changed != whole:
            with pytest.raises(TransferRefused):
                import_store(executor, path, progress=lambda table, rows: None)
    path.write_bytes(whole)
    assert import_store(executor, path, progress=lambda table, rows: None).rows["threads"] == 1
    executor.close()
    into.dispose()


@quick
@given(json_values)
def test_what_is_stored_is_read_back(value: Any) -> None:
    found = parsed(lambda: payload_json(value))
    assert found is None or from_json(found[0]) is not ...
