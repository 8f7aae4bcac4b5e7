"""OpenTelemetry by its own SDK: which spans there are, what links them across clients and processes, what they say."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from redis import Redis
from rq import Queue

from chatlock import Answered, AsyncChatlock, Chatlock, ClaimLost, Turn
from chatlock.inputs import Key, key_hash
from chatlock.middleware.otel import instrument
from chatlock.rq_jobs import FUNCTION
from tests.acceptance.cases.support import TENANT, until
from tests.acceptance.services import Served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.databases import Database
    from tests.support.processes import Child

SECRETS = ("secret payload", "secret reply", "secret-tenant", "secret-thread")


class Traced:
    """One process's tracer, and the spans that it ended, by name."""

    def __init__(self) -> None:
        self._exporter, self.provider = InMemorySpanExporter(), TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.all(name)
        return span

    def text(self) -> str:
        """Everything that would be sent."""
        return "".join(span.to_json() for span in self._exporter.get_finished_spans())


@pytest.fixture
def traced() -> Traced:
    return Traced()


@pytest.fixture
def make(served: Database) -> Iterator[Callable[..., Chatlock]]:
    """Clients of one database: each is as a process of its own would be."""
    made: list[Chatlock] = []

    def client(traced: Traced, tenant: str = "t", **providers: Any) -> Chatlock:
        chat = Chatlock(served.url, tenant=tenant, poller=False)
        made.append(chat)
        instrument(chat, tracer_provider=traced.provider, **providers)
        return chat

    yield client
    for chat in made:
        chat.close()


def ids(spans: Any) -> set[int]:
    return {(span.context if hasattr(span, "context") else span).span_id for span in spans}


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_request_submit_claim_and_turn_are_one_trace(make: Any, traced: Traced, thread: str) -> None:
    chat = make(traced)
    seen: list[Any] = []
    chat.handler()(lambda turn: seen.append(trace.get_current_span()))
    with traced.tracer.start_as_current_span("request") as request:
        assert isinstance(chat.submit(thread, "hello", message_id="m1"), Answered)
        assert trace.get_current_span() is request
    submit, claim, turn = (traced.one(f"chatlock.{name}") for name in ("submit", "claim", "turn"))
    assert parent(submit) == request.get_span_context().span_id
    assert parent(claim) == parent(turn) == submit.context.span_id
    assert seen[0].get_span_context() == turn.context
    assert ids(turn.links) == {submit.context.span_id}
    assert (submit.kind, claim.kind, turn.kind) == (SpanKind.PRODUCER, SpanKind.INTERNAL, SpanKind.CONSUMER)
    named = key_hash(Key("t", thread))[:12]
    shared = {
        "messaging.system": "chatlock",
        "messaging.destination.name": "default",
        "messaging.message.conversation_id": named,
        "gen_ai.conversation.id": named,
    }
    sends = {"messaging.operation.name": "submit", "messaging.operation.type": "send"}
    processes = {"messaging.operation.name": "turn", "messaging.operation.type": "process"}
    claimed = {"chatlock.token": 1, "chatlock.claimed_by": "submit"}
    assert facts(submit) == shared | sends | {"messaging.message.id": "m1", "chatlock.outcome": "answered"}
    assert facts(claim) == shared | processes | claimed
    ended = {"messaging.batch.message_count": 1, "chatlock.ended": "done"}
    assert facts(turn) == shared | processes | claimed | ended
    assert {span.status.status_code for span in (submit, claim, turn)} == {StatusCode.UNSET}


def test_turn_elsewhere_links_to_every_submit_and_is_nobodys_child(make: Any, thread: str) -> None:
    web, worker = Traced(), Traced()
    sender, poller = make(web), make(worker)
    for payload in ("one", "two", "three"):
        with web.tracer.start_as_current_span("request"):
            sender.submit(thread, payload, wait_ms=0)
    poller.handler()(lambda turn: "ok")
    poller.sweep_once()
    turn, submits = worker.one("chatlock.turn"), web.all("chatlock.submit")
    assert parent(turn) is None
    assert [(link.context.trace_id, link.context.span_id) for link in turn.links] == [
        (submit.context.trace_id, submit.context.span_id) for submit in submits
    ]
    assert all(link.context.is_remote for link in turn.links)
    assert len({submit.context.trace_id for submit in submits}) == 3
    assert (facts(turn)["messaging.batch.message_count"], facts(turn)["chatlock.claimed_by"]) == (3, "poller")
    assert worker.all("chatlock.claim") == [], "nobody waited for it"


def test_async_handler_runs_in_the_span_of_its_turn(served: Database, traced: Traced, thread: str) -> None:
    async def main() -> None:
        async with AsyncChatlock(served.url, tenant="t", poller=False) as chat:
            instrument(chat, tracer_provider=traced.provider)

            @chat.handler()
            async def answer(turn: Any) -> str:
                with traced.tracer.start_as_current_span("model"):
                    await asyncio.sleep(0)
                return "ok"

            with traced.tracer.start_as_current_span("request"):
                await chat.submit(thread, "hello")
                async with chat.turn(thread, "again") as turn, asyncio.timeout(60):
                    with traced.tracer.start_as_current_span("own"):
                        await turn.finish("ok")

    asyncio.run(main())
    first, second = traced.all("chatlock.turn")
    assert parent(traced.one("model")) == first.context.span_id
    assert parent(traced.one("own")) == second.context.span_id
    assert len({span.context.trace_id for name in ("request", "chatlock.turn") for span in traced.all(name)}) == 1


def test_stream_is_of_the_trace_of_its_caller(make: Any, traced: Traced, thread: str) -> None:
    chat = make(traced)
    chat.handler()(lambda turn: "ok")
    with traced.tracer.start_as_current_span("request") as request:
        assert [event.kind for event in chat.stream(thread, "hello")] == ["reply", "outcome"]
    assert parent(traced.one("chatlock.submit")) == request.get_span_context().span_id


def test_messages_that_a_turn_fetches_later_are_linked_too(make: Any, traced: Traced, thread: str) -> None:
    chat = make(traced)
    turn = chat.begin(thread, "hello", message_id="m1")
    chat.submit(thread, "more", message_id="m2", wait_ms=0)
    with traced.tracer.start_as_current_span("edit") as edit:
        chat.edit(thread, "m2", "better", "m3")
    turn.fetch()
    turn.finish("ok")
    span = traced.one("chatlock.turn")
    first = traced.all("chatlock.submit")[0].context
    assert ids(span.links) == {first.span_id, edit.get_span_context().span_id}
    assert [dict(link.attributes or {}) for link in span.links] == [
        {"messaging.message.id": "m1"},
        {"messaging.message.id": "m3"},
    ]
    assert [(event.name, dict(event.attributes or {})) for event in span.events] == [
        ("chatlock.fetch", {"messaging.batch.message_count": 1})
    ] * 2


def test_faults_are_errors_by_type_and_nothing_says_what_people_wrote(make: Any, traced: Traced) -> None:
    reader = InMemoryMetricReader()
    chat = make(traced, tenant=SECRETS[2], meter_provider=MeterProvider([reader]))

    @chat.handler("broken")
    def broken(turn: Turn) -> str:
        raise ValueError(f"{SECRETS[0]} {SECRETS[3]}")

    chat.submit(SECRETS[3], SECRETS[0], agent="broken", wait_ms=0)
    lost = chat.begin("other", SECRETS[0], agent="lost")
    chat.free("other", turn=lost.token, force=True, reason="test")
    with pytest.raises(ClaimLost):
        lost.finish(SECRETS[1])
    refused = chat.begin("third", SECRETS[0], agent="refused")
    refused.fail(SECRETS[1])
    chat._executor.points = lambda name: 1 / 0
    with pytest.raises(ZeroDivisionError):
        chat.submit("fourth", SECRETS[0])
    chat._executor.points = None

    turns = traced.all("chatlock.turn")
    assert [(facts(turn)["error.type"], facts(turn)["chatlock.ended"]) for turn in turns] == [
        ("ValueError", "failed"),
        ("ClaimLost", "lost"),
        ("_OTHER", "failed"),
    ]
    failed = [*turns, traced.all("chatlock.submit")[-1]]
    assert {span.status.status_code for span in failed} == {StatusCode.ERROR}
    assert {span.status.description for span in failed} == {None}
    assert facts(failed[-1])["error.type"] == "ZeroDivisionError"
    assert facts(failed[-1])["chatlock.outcome"] == "raised"
    read: Any = reader.get_metrics_data()
    (metric,) = [m for r in read.resource_metrics for s in r.scope_metrics for m in s.metrics]
    assert (metric.name, metric.unit) == ("messaging.process.duration", "s")
    points = {point.attributes["messaging.destination.name"]: point.attributes for point in metric.data.data_points}
    assert points["broken"]["error.type"] == "ValueError"
    assert set(points) == {"broken", "lost", "refused"}
    for secret in SECRETS:
        assert secret not in traced.text() + read.to_json()


@pytest.mark.parametrize(
    "stored",
    ["x" * 100_000, "00-nothing", f"00-{'0' * 32}-{'0' * 16}-01", f"ff-{'a' * 32}-{'b' * 16}-01", "", "\N{SNOWMAN}"],
    ids=["oversized", "malformed", "zero", "version", "empty", "unicode"],
)
def test_trace_column_that_holds_anything_fails_no_turn(
    make: Any, served: Database, traced: Traced, thread: str, stored: str, caplog: pytest.LogCaptureFixture
) -> None:
    sender, chat = make(Traced()), make(traced)
    sender.submit(thread, "hello", message_id="m1", wait_ms=0)
    served.connect().execute("UPDATE chatlock_messages SET trace = ? WHERE thread_id = ?", (stored, thread))
    chat.handler()(lambda turn: "ok")
    chat.sweep_once()
    assert chat.status(thread, "m1").reply == "ok"
    assert (len(traced.one("chatlock.turn").links), facts(traced.one("chatlock.turn"))["chatlock.ended"]) == (0, "done")
    assert not [record for record in caplog.records if record.name == "chatlock"]


def test_without_an_sdk_nothing_is_carried(served: Database, thread: str) -> None:
    with Chatlock(served.url, tenant="t", poller=False) as chat:
        instrument(chat)
        assert chat.begin(thread, "hello").messages[0].trace is None


def test_client_is_instrumented_once(make: Any, traced: Traced, thread: str) -> None:
    chat = make(traced)
    instrument(chat, tracer_provider=traced.provider)
    chat.begin(thread, "hello").release()
    assert facts(traced.one("chatlock.turn"))["chatlock.ended"] == "released"


def test_turn_of_a_real_worker_links_to_the_submit_of_its_message(
    sqlite_database: Database, tmp_path: Path, child: Callable[[Child], Child], redis_url: str, traced: Traced
) -> None:
    """`chatlock worker`: RQ ends its work-horse without atexit, long before a batch would be sent."""
    sent = tmp_path / "sent"
    served = Served(sqlite_database, tmp_path, child, {"redis_url": redis_url, "SERVED_SPANS": str(sent)})
    worker = served.start("worker")
    instrument(served.client, tracer_provider=traced.provider)
    with traced.tracer.start_as_current_span("request") as request:
        served.store("thread", message_id="m1")
    with Redis.from_url(redis_url) as connection:
        Queue("chatlock", connection=connection, serializer="json").enqueue(FUNCTION, TENANT, "thread", job_id="wake")
    until(lambda: sent.read_text().endswith("\n"), what="the spans of the work-horse")
    served.client.close()

    turn, submit = json.loads(sent.read_text()), traced.one("chatlock.submit")
    assert served.journal.enters()[0].pid != worker.pid, "a work-horse ran the turn"
    assert parent(submit) == request.get_span_context().span_id
    assert (turn["name"], turn["kind"], turn["parent_id"]) == ("chatlock.turn", "SpanKind.CONSUMER", None)
    assert turn["context"]["trace_id"] != f"0x{submit.context.trace_id:032x}"
    assert (turn["attributes"]["chatlock.claimed_by"], turn["attributes"]["chatlock.ended"]) == ("rq", "done")
    (link,) = turn["links"]
    assert link["context"]["trace_id"] == f"0x{submit.context.trace_id:032x}"
    assert link["context"]["span_id"] == f"0x{submit.context.span_id:016x}"
    assert link["attributes"] == {"messaging.message.id": "m1"}
