"""The documented API against what the server does: no 5xx, no undocumented answer, whatever is sent."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from chatlock.middleware import openapi
from examples.fastapi_chat.app import application
from examples.fastapi_chat.serving import serving
from tests.frameworks.conftest import Front
from tests.support import scaled
from tests.support.databases import Database

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]
OPERATIONS = [
    *("submit_message", "read_message", "follow_message", "edit_message", "cancel_message", "answer_question"),
    "stop_turn",
]
FEW = settings(
    max_examples=scaled(8, 500),
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def address(served: Database) -> Iterator[str]:
    with serving(application(served.url, think_s=0)) as (_, address):
        yield address


@pytest.fixture(scope="module")
def schema(address: str) -> Any:
    return schemathesis.openapi.from_url(f"{address}/openapi.json")


def test_every_operation_is_one_that_these_tests_know(schema: Any) -> None:
    found = [result.ok().definition.raw["operationId"] for result in schema.get_all_operations()]
    assert sorted(found) == sorted(OPERATIONS)


# elsewhere the schema allows every text and every JSON: there is nothing that it does not allow
PLAYED = [*((name, GenerationMode.POSITIVE) for name in OPERATIONS), ("stop_turn", GenerationMode.NEGATIVE)]


@pytest.mark.parametrize(("name", "mode"), PLAYED, ids=[f"{name}-{mode.value}" for name, mode in PLAYED])
def test_whatever_is_sent_gets_a_documented_answer(schema: Any, address: str, name: str, mode: GenerationMode) -> None:
    operation = schema.find_operation_by_id(name)

    @FEW
    @given(case=operation.as_strategy(generation_mode=mode))
    def play(case: Any) -> None:
        response = case.call(base_url=address, cookies={"visitor": "ann"})
        case.validate_response(response, checks=CHECKS)

    play()


HEADERS = ["Idempotency-Key", "Prefer", "If-Match", "Last-Event-ID", "Accept", "Content-Type", "X-User", "Origin"]


def surrogates_too(text: str) -> bytes:
    """As no encoder would write it."""
    return text.encode(errors="surrogatepass")


BYTES = [byte for byte in range(33, 256) if byte != 127]  # what a server lets through
VALUES = st.lists(st.sampled_from(BYTES), max_size=40).map(bytes)


ASKED = {
    ("POST", ""): openapi.POST,
    ("GET", "/m"): openapi.READ,
    ("GET", "/m/events"): openapi.FOLLOW,
    ("PATCH", "/m"): openapi.EDIT,
    ("POST", "/m/cancel"): openapi.CANCEL,
    ("POST", "/../questions/q/answer"): openapi.ANSWER,
    ("POST", "/../cancel"): openapi.STOP,
}
BODIES = st.just(b'"x"') | st.binary(max_size=40) | st.text('[]{}\\",:0e-u\ud83d', max_size=20).map(surrogates_too)


def test_whatever_stands_in_headers_and_body_gets_a_documented_answer(front: Front) -> None:
    @FEW
    @given(
        headers=st.dictionaries(st.sampled_from(HEADERS), VALUES, max_size=4),
        content=BODIES,
        ask=st.sampled_from(list(ASKED)),
    )
    def play(headers: dict[str, bytes], content: bytes, ask: tuple[str, str]) -> None:
        method, path = ask
        named = [(b"Content-Type", b"application/json"), *((k.encode(), v) for k, v in headers.items())]
        url = posixpath.normpath(front.messages + path)
        answer = front.http.request(method, url, content=content, headers=named)
        assert answer.status_code in ASKED[ask]["responses"]
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json"

    play()
