"""Both wakes and polling on real servers: a wake shortens the wait, and losing one costs a poll interval and no more.

Where the next look is an hour away, only a wake, or the full look after a new subscription, can serve a waiter.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from chatlock import Answered, Chatlock, Limits, Queued, Turn
from chatlock.inputs import Key, key_hash
from chatlock.wake import channel as channels
from chatlock.wake import redis as redis_wake
from chatlock.wake import waiters
from tests.acceptance.cases.support import TENANT, ProcessGate, thread_row, until
from tests.acceptance.wires import Unreachable, Waiting, Wire
from tests.support.processes import Child
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from tests.support.databases import Database

HOUR_S = 3600
NAME = key_hash(Key(TENANT, "thread"))


@pytest.fixture(params=["redis", "postgres"])
def wire(request: pytest.FixtureRequest, pg_database: Database, redis_url: str) -> Iterator[Wire]:
    made = Wire(request.param, pg_database, redis_url)
    with made.proxy:
        yield made


@pytest.fixture(autouse=True)
def _retries_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "RETRY_S", 0.05)


@pytest.fixture
def holder(wire: Wire) -> Iterator[Turn]:
    """A turn of another client with a wake of the same kind."""
    with Chatlock(wire.database.url, tenant=TENANT, poller=False, wake=wire.channel()) as chat:
        turn = chat.begin("thread", "first", message_id="held")
        assert isinstance(turn, Turn)
        yield turn


def served(waiting: Future[Any]) -> None:
    assert isinstance(waiting.result(20), Answered)


# -- a wake serves -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("world", ["sync", "async"])
def test_release_wakes_a_waiter_in_another_process(
    wire: Wire, pg_database: Database, child: Callable[[Child], Child], world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "LOOK_EVERY_S", HOUR_S)
    gate = ProcessGate()

    def hold() -> None:
        with (
            Chatlock(pg_database.url, tenant=TENANT, poller=False, wake=wire.channel()) as chat,
            chat.turn("thread", "first", message_id="held") as turn,
        ):
            print("running", flush=True)
            gate.hold()
            turn.finish("done")

    other = child(Child.fork(hold))
    other.wait_for("running")
    with Waiting(pg_database, wire.channel(), world) as waiting:
        asked = waiting.submit()
        gate.open()
        served(asked)
        assert NAME in waiting.heard
    assert other.wait() == 0


def test_waiter_whose_wake_is_dropped_is_served_by_the_next_wake_alone(
    wire: Wire, holder: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the tests here: with the look an hour away and the wake dropped, nothing serves the waiter."""
    monkeypatch.setattr(waiters, "LOOK_EVERY_S", HOUR_S)
    with Waiting(wire.database, wire.channel()) as waiting:
        asked = waiting.submit()
        waiting.dropping = True
        heard = len(waiting.heard)
        holder.finish("done")
        until(lambda: NAME in waiting.heard[heard:], what="the wake")
        waiting.dropping = False
        assert not asked.done()
        wake = wire.channel()
        wake.open(lambda name: None)
        until(lambda: wake.send(NAME) or asked.done(), what="the next wake")  # one may be lost
        served(asked)
        wake.close()


# -- B51: a wake is lost -----------------------------------------------------------------------------------------------
def test_polling_alone_serves(pg_database: Database) -> None:
    with Chatlock(pg_database.url, tenant=TENANT, poller=False) as chat, Waiting(pg_database, None) as waiting:
        turn = chat.begin("thread", "first")
        assert isinstance(turn, Turn)
        asked = waiting.submit()
        turn.finish("done")
        served(asked)


def test_dropped_wake_costs_a_poll_interval(wire: Wire, holder: Turn) -> None:
    """B51 (c)."""
    with Waiting(wire.database, wire.channel()) as waiting:
        asked = waiting.submit()
        waiting.dropping = True
        holder.finish("done")
        served(asked)


def test_listener_that_was_terminated_subscribes_again_and_looks_at_everything(
    wire: Wire, holder: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B51 (a) and (d): the release falls between the end of one subscription and the begin of the next."""
    monkeypatch.setattr(waiters, "LOOK_EVERY_S", HOUR_S)
    with Waiting(wire.database, wire.channel(proxied=True)) as waiting:
        asked = waiting.submit()
        waiting.heard.clear()
        waiting.resubscribes = Gate()
        wire.proxy.down = True
        wire.terminate_listeners()
        waiting.resubscribes.wait_entered()
        holder.finish("done")
        until(lambda: thread_row(wire.database, "thread")["done_seq"] == 1, what="the release")
        assert not asked.done()
        wire.proxy.down = False
        waiting.resubscribes.open()
        served(asked)
        assert waiting.heard[0] is None


def test_new_subscription_alone_has_everything_looked_at(
    wire: Wire, holder: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B51 (a), whoever subscribes again: a client library may do so by itself, unseen."""
    monkeypatch.setattr(waiters, "LOOK_EVERY_S", HOUR_S)
    with Waiting(wire.database, wire.channel()) as waiting:
        asked = waiting.submit()
        waiting.heard.clear()
        wire.terminate_listeners()
        until(lambda: None in waiting.heard, what="the full look")
        holder.finish("done")
        served(asked)


def test_full_look_comes_after_the_subscription_is_in_force(
    wire: Wire, holder: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B51 (d): a look that came before the server had heard would leave a gap in which a wake is lost."""
    monkeypatch.setattr(waiters, "LOOK_EVERY_S", HOUR_S)
    wake = wire.channel(proxied=True)
    held = wire.proxy.on(b"SUBSCRIBE" if wire.kind == "redis" else b"LISTEN", do="hold")
    waiting = Waiting(wire.database, wake)
    waiting.listens = False
    with waiting:
        asked = waiting.submit()
        held.wait_entered()
        holder.finish("done")
        until(lambda: thread_row(wire.database, "thread")["done_seq"] == 1, what="the release")
        assert waiting.heard == []
        held.open()
        served(asked)


def test_server_of_the_wake_that_is_away_costs_a_poll_interval(wire: Wire, holder: Turn) -> None:
    with Waiting(wire.database, wire.channel(proxied=True)) as waiting:
        asked = waiting.submit()
        wire.proxy.down = True
        wire.proxy.cut_all()
        holder.finish("done")
        served(asked)
        waiting.heard.clear()
        wire.proxy.down = False
        until(lambda: None in waiting.heard, what="the new subscription")


def test_half_open_listener_costs_a_poll_interval(wire: Wire, holder: Turn) -> None:
    """B51 (b): the connection stands and nothing comes over it any more."""
    wake = wire.channel(proxied=True)
    held = wire.proxy.on(b"SUBSCRIBE" if wire.kind == "redis" else b"LISTEN", do="hold_reply")
    waiting = Waiting(wire.database, wake)
    waiting.listens = False
    with waiting:
        asked = waiting.submit()
        held.wait_entered()
        holder.finish("done")
        served(asked)
        assert NAME not in waiting.heard
        held.open()


@pytest.mark.parametrize("wire", ["redis"], indirect=True)
def test_subscription_that_does_not_answer_is_replaced(
    wire: Wire, holder: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B51 (b): the network swallows what is sent; the answers to the pings of a silent listener are missed."""
    monkeypatch.setattr(waiters, "LOOK_EVERY_S", HOUR_S)
    monkeypatch.setattr(redis_wake, "HEALTH_S", 1)
    monkeypatch.setattr(redis_wake, "LISTEN_S", 0.02)
    with Waiting(wire.database, wire.channel(proxied=True)) as waiting:
        asked = waiting.submit()
        waiting.heard.clear()
        swallowed = wire.proxy.on(b"PING", do="hold_reply")
        swallowed.wait_entered()
        until(lambda: None in waiting.heard, what="the new subscription")
        holder.finish("done")
        served(asked)
        swallowed.open()


def test_listener_waits_longer_for_a_server_that_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pause is spread over its second half, so that listeners do not come back in step."""
    monkeypatch.setattr(channels, "RETRY_S", 1.0)
    wake, pauses = Unreachable(), list[float]()
    turns = iter([*[False] * 7, True, False, False])

    def wait_for(closed: object, pause: float) -> bool:
        pauses.append(pause)
        wake.up = next(turns, False)
        wake.closed = len(pauses) == 10
        return True

    monkeypatch.setattr(wake._changed, "wait_for", wait_for)
    wake._listen_loop()
    expected = [1, 2, 4, 8, 15, 15, 15, 15, 1, 2]
    assert all(0.5 * full <= pause <= full for full, pause in zip(expected, pauses, strict=True)), pauses
    assert len({pause / full for full, pause in zip(expected, pauses, strict=True)}) > 1


def test_sender_whose_connection_was_cut_sends_again(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake may be lost with the connection; the one after it is not."""
    sender = wire.channel(proxied=True)
    sender.open(lambda name: None)
    sender.send("a" * 64)
    sender.flush()
    wire.proxy.cut_all()

    def send() -> None:
        for letter in "bc":
            sender.send(letter * 64)
            sender.flush()

    assert "c" * 64 in wire.travelled(send)
    sender.close()


def test_message_that_its_client_only_stores_is_begun_at_once_elsewhere(wire: Wire) -> None:
    """The poller there looks when its listener subscribes, and sweeps again in an hour."""
    wake, begun, listens = wire.channel(), threading.Event(), threading.Event()
    listening = wake._listening
    wake._listening = lambda: (listening(), listens.set())  # type: ignore[method-assign, assignment]
    with (
        Chatlock(wire.database.url, tenant=TENANT, wake=wake, limits=Limits(sweep_ms=HOUR_S * 1000)) as worker,
        Chatlock(wire.database.url, tenant=TENANT, poller=False, wake=wire.channel()) as web,
    ):
        worker.handler()(lambda turn: begun.set())
        worker.setup()
        assert listens.wait(20)
        until(lambda: not worker._poller._nudged)
        assert isinstance(web.submit("thread", "hello", wait_ms=0), Queued)
        assert begun.wait(20)


# -- what travels ------------------------------------------------------------------------------------------------------
def test_uncontended_turns_send_nothing_and_contended_ones_hashes_alone(wire: Wire) -> None:
    wake = wire.channel()
    with Chatlock(wire.database.url, tenant=TENANT, poller=False, wake=wake) as chat:
        chat.handler()(lambda turn: "done")

        def uncontended() -> None:
            for number in range(20):
                assert isinstance(chat.submit(f"thread-{number % 3}", "hello"), Answered)
            wake.flush()

        assert wire.travelled(uncontended) == []

        def contended() -> None:
            turn = chat.begin("thread", "secret words")
            assert isinstance(turn, Turn)
            chat.submit("thread", "more secret words", wait_ms=0)
            turn.finish("done")
            wake.flush()

        names = wire.travelled(contended)
        assert set(names) == {NAME}
        assert all(re.fullmatch("[0-9a-f]{64}", name) for name in names)


def test_of_what_a_client_only_stores_the_next_message_of_a_free_thread_travels_alone(wire: Wire) -> None:
    """Whoever ends a turn will wake those who go on, and whoever is woken finds all that waits."""
    wake = wire.channel()
    with Chatlock(wire.database.url, tenant=TENANT, poller=False, wake=wake) as chat:

        def store(thread: str) -> list[str]:
            def messages() -> None:
                for number in range(3):
                    assert isinstance(chat.submit(thread, "hello", message_id=f"m{number}", wait_ms=0), Queued)
                    wake.flush()

            return wire.travelled(messages)

        assert store("thread") == [NAME]
        turn = chat.begin("busy", "first")
        assert isinstance(turn, Turn)
        assert store("busy") == []
        turn.finish("done")
