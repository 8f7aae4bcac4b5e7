"""OpenTelemetry: spans of submits, claims and turns, and the link from a turn to those who sent its messages.

    instrument(chat)

A message carries the W3C traceparent of its submit in the inbox row; the turn that takes it, in whatever process, links
to it.  No payload, reply, tenant or thread name is in any span: a thread is named by the hash that logs use.
"""

from __future__ import annotations

import time
from contextvars import ContextVar, Token
from importlib.metadata import version
from typing import Any
from weakref import WeakSet

from chatlock import AsyncChatlock, Chatlock, Message
from chatlock.hooks import (
    ClaimGranted,
    JobEnded,
    MessagesFetched,
    Notice,
    SubmitBegan,
    SubmitEnded,
    TurnEnded,
    TurnEntered,
    TurnLeft,
)
from chatlock.inputs import Key, key_hash
from chatlock.middleware import framework
from chatlock.observe import SECONDS

__all__ = ["instrument"]

_api: Any = framework("opentelemetry.trace", "otel")
_context: Any = framework("opentelemetry.context", "otel")
_metrics: Any = framework("opentelemetry.metrics", "otel")
_w3c: Any = framework("opentelemetry.trace.propagation.tracecontext", "otel").TraceContextTextMapPropagator()

FLUSH_MS = 5_000
TRACEPARENT = "traceparent"

_scopes: ContextVar[tuple[tuple[object, Any, Token[Any]], ...]] = ContextVar("chatlock_otel_scopes", default=())
"""What the current context is in, innermost last: of what, its span, and the way back."""
_instrumented: WeakSet[Chatlock | AsyncChatlock] = WeakSet()


def instrument(chat: Chatlock | AsyncChatlock, *, tracer_provider: Any = None, meter_provider: Any = None) -> None:
    """Traces what this client does, once, however often it is called.

    Spans: chatlock.submit (producer, current while the call lasts), chatlock.claim (the wait) and chatlock.turn
    (consumer, current in its handler or block), which is linked to the submit of every message that it took.
    Histogram: messaging.process.duration.  See docs/observing.md for the attributes.

    Args:
        chat: The client.
        tracer_provider: Where spans go.  None: the global one.
        meter_provider: Where the histogram goes.  None: the global one.
    """
    if chat in _instrumented:
        return
    _instrumented.add(chat)
    chat.subscribe(_Tracing(tracer_provider, meter_provider), trace=_traceparent)


def _traceparent() -> str | None:
    """The current span, as a message carries it."""
    carrier: dict[str, str] = {}
    _w3c.inject(carrier)
    return carrier.get(TRACEPARENT)


class _Tracing:
    """The subscriber."""

    def __init__(self, tracer_provider: Any, meter_provider: Any) -> None:
        self._providers = (tracer_provider, meter_provider)
        self._tracer = _api.get_tracer("chatlock", version("chatlock"), tracer_provider)
        meter = _metrics.get_meter("chatlock", version("chatlock"), meter_provider)
        self._durations = meter.create_histogram(
            "messaging.process.duration", "s", "How long turns ran here.", explicit_bucket_boundaries_advisory=SECONDS
        )
        self._turns: dict[str, Any] = {}

    def __call__(self, notice: Notice) -> None:
        match notice:
            case SubmitBegan():
                self._submit_began(notice)
            case SubmitEnded():
                self._submit_ended(notice)
            case ClaimGranted():
                self._claim_granted(notice)
            case MessagesFetched(claim, messages) if claim.claim_id in self._turns:
                _fetched(self._turns[claim.claim_id], messages)
            case TurnEntered(claim) if claim.claim_id in self._turns:
                _enter(claim.claim_id, self._turns[claim.claim_id])
            case TurnLeft(claim):
                _leave(claim.claim_id)
            case TurnEnded(claim) if claim.claim_id in self._turns:
                self._turn_ended(notice, self._turns.pop(claim.claim_id))
            case JobEnded():
                self._flush()

    def _submit_began(self, notice: SubmitBegan) -> None:
        facts = _facts("submit", "send", notice.key, notice.agent) | {"messaging.message.id": notice.message_id}
        span = self._tracer.start_span("chatlock.submit", kind=_api.SpanKind.PRODUCER, attributes=facts)
        _enter((notice.key, notice.message_id), span)

    def _submit_ended(self, notice: SubmitEnded) -> None:
        span = _leave((notice.key, notice.message_id))
        if span is not None:
            span.set_attribute("chatlock.outcome", notice.outcome)
            _end(span, notice.error_type)

    def _claim_granted(self, notice: ClaimGranted) -> None:
        claim = notice.claim
        facts = _facts("turn", "process", claim.key, claim.agent)
        facts |= {"chatlock.token": claim.token, "chatlock.claimed_by": notice.by}
        if notice.waited_s is not None:
            since = time.time_ns() - int(notice.waited_s * 1e9)
            self._tracer.start_span("chatlock.claim", attributes=facts, start_time=since).end()
        self._turns[claim.claim_id] = self._tracer.start_span(
            "chatlock.turn", kind=_api.SpanKind.CONSUMER, attributes=facts
        )

    def _turn_ended(self, notice: TurnEnded, span: Any) -> None:
        faults = {"failed": notice.error_type or "_OTHER", "lost": "ClaimLost", "left": "StoreUnavailable"}
        error_type = faults.get(notice.how)
        span.set_attribute("messaging.batch.message_count", notice.messages)
        span.set_attribute("chatlock.ended", notice.how)
        _end(span, error_type)
        facts = {"messaging.system": "chatlock", "messaging.operation.name": "turn"}
        facts |= {"messaging.destination.name": notice.claim.agent} | ({"error.type": error_type} if error_type else {})
        self._durations.record(notice.seconds, facts)

    def _flush(self) -> None:
        """What a work-horse has gathered would end with it."""
        tracers, meters = self._providers
        for provider in (tracers or _api.get_tracer_provider(), meters or _metrics.get_meter_provider()):
            flush = getattr(provider, "force_flush", None)  # the SDK's have one
            if flush is not None:
                flush(FLUSH_MS)


def _facts(name: str, kind: str, key: Key, agent: str) -> dict[str, Any]:
    thread = key_hash(key)[:12]
    return {
        "messaging.system": "chatlock",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": agent,
        "messaging.message.conversation_id": thread,
        "gen_ai.conversation.id": thread,
    }


def _fetched(span: Any, messages: tuple[Message, ...]) -> None:
    """Links the turn to those who sent the messages; a stored trace that is no traceparent links to nobody."""
    span.add_event("chatlock.fetch", {"messaging.batch.message_count": len(messages)})
    for message in messages:
        if message.trace is not None:
            sender = _api.get_current_span(_w3c.extract({TRACEPARENT: message.trace})).get_span_context()
            if sender.is_valid:
                span.add_link(sender, {"messaging.message.id": message.message_id})


def _enter(of: object, span: Any) -> None:
    """The span is current from now on, in this context."""
    token = _context.attach(_api.set_span_in_context(span))
    _scopes.set((*_scopes.get(), (of, span, token)))


def _leave(of: object) -> Any:
    """What was current before is so again; the span, or None where this context did not enter it."""
    scopes = _scopes.get()
    for number, (entered, span, token) in reversed(list(enumerate(scopes))):
        if entered == of:
            _scopes.set(scopes[:number])
            _context.detach(token)
            return span
    return None


def _end(span: Any, error_type: str | None) -> None:
    """Ends it.  An exception's text may say what people wrote, so only its type is told."""
    if error_type is not None:
        span.set_attribute("error.type", error_type)
        span.set_status(_api.Status(_api.StatusCode.ERROR))
    span.end()
