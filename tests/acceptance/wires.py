"""A wake's wire that can be cut and heard, and a caller that waits behind it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import redis

from chatlock import Chatlock
from chatlock.wake import channel as channels
from chatlock.wake import postgres
from chatlock.wake import redis as redis_wake
from chatlock.wake.postgres import PostgresWake
from chatlock.wake.redis import RedisWake
from tests.acceptance.cases.support import TENANT, rows, until
from tests.acceptance.cases.wire import PG_READY, Proxy
from tests.conformance.bridge import Bridge
from tests.support.databases import connect
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from chatlock.wake.channel import Channel
    from tests.support.databases import Database


class Wire:
    """One kind of wake: channels whose servers are reached over a proxy, and what travels on the server."""

    def __init__(self, kind: str, database: Database, redis_url: str) -> None:
        self.kind, self.database, self._redis_url = kind, database, redis_url
        is_redis = kind == "redis"
        self.proxy = Proxy(redis_url if is_redis else database.url, b"\r\n" if is_redis else PG_READY)

    def channel(self, *, proxied: bool = False) -> Channel:
        """A new channel; proxied: its connections can be cut, held and refused."""
        if self.kind == "redis":
            return RedisWake(self.proxy.url if proxied else self._redis_url)
        return PostgresWake(self.proxy.url if proxied else self.database.url)

    def terminate_listeners(self) -> None:
        """The server ends the connection of whoever listens."""
        if self.kind == "redis":
            with redis.Redis.from_url(self._redis_url) as server:
                assert server.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        else:
            ended = rows(
                self.database,
                "SELECT pg_terminate_backend(pid) AS ended FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'chatlock wake' AND query NOT LIKE :notify",
                notify="SELECT pg_notify%",
            )
            assert ended

    def travelled(self, act: Callable[[], object]) -> list[str]:
        """Every name that the server carried while `act` ran: up to a mark that is sent after it."""
        mark = "f" * 64
        with closing(self._raw_listener()) as listener:
            act()
            self._send_raw(mark)
            names: list[str] = []
            while mark not in names:
                names.append(next(listener))
        return names[:-1]

    def _send_raw(self, name: str) -> None:
        """Without a channel, which may lose what it sends."""
        if self.kind == "redis":
            with redis.Redis.from_url(self._redis_url) as server:
                server.publish(redis_wake.CHANNEL, name)
        else:
            rows(self.database, "SELECT pg_notify(:channel, :name)", channel=postgres.CHANNEL, name=name)

    def _raw_listener(self) -> Any:
        listener = self._raw_redis() if self.kind == "redis" else self._raw_postgres()
        assert next(listener) == "listening"
        return listener

    def _raw_redis(self) -> Iterator[str]:
        with redis.Redis.from_url(self._redis_url, socket_timeout=20) as server, server.pubsub() as subscription:
            subscription.subscribe(redis_wake.CHANNEL)
            for message in subscription.listen():
                yield "listening" if message["type"] == "subscribe" else message["data"].decode()

    def _raw_postgres(self) -> Iterator[str]:
        with closing(connect(self.database.url)) as connection:
            connection.execute(f"LISTEN {postgres.CHANNEL}")
            yield "listening"
            assert isinstance(connection, psycopg.Connection)
            for notification in connection.notifies(timeout=20):
                yield notification.payload


class Waiting:
    """A caller that waits behind `holder`'s turn, with what its client heard of wakes."""

    def __init__(self, database: Database, wake: Channel | None, world: str = "sync") -> None:
        self.heard: list[str | None] = []
        self.dropping = False
        self.resubscribes: Gate | None = None
        if wake is not None:
            self._woken, wake._woken = wake._woken, self._hear  # type: ignore[method-assign]
            self._listen, wake._listen = wake._listen, self._listen_again  # type: ignore[method-assign]
        options: dict[str, Any] = {"tenant": TENANT, "poller": False, "wake": wake}
        self.chat: Any = (Chatlock if world == "sync" else Bridge)(database.url, **options)
        self.chat.handler()(lambda turn: [m.message_id for m in turn.messages])
        self._beside = ThreadPoolExecutor(1)
        self.listens = wake is not None

    def _hear(self, name: str | None) -> None:
        self.heard.append(name)
        if not self.dropping:
            self._woken(name)

    def _listen_again(self) -> None:
        if self.resubscribes is not None:
            self.resubscribes.hold()
        self._listen()

    def __enter__(self) -> Waiting:
        self.chat.status("thread", "none")  # first use: the listener begins
        if self.listens:
            until(lambda: None in self.heard, what="the subscription")
        return self

    def __exit__(self, *_: object) -> None:
        self.chat.close()
        self._beside.shutdown()

    def submit(self) -> Future[Any]:
        """Submits beside the test; returns once the caller waits."""
        future = self._beside.submit(self.chat.submit, "thread", "hello", message_id="waits", wait_ms=20_000)
        self.until_armed()
        return future

    def until_armed(self) -> None:
        """Returns once the stored message is waited for."""
        registry = getattr(self.chat, "chat", self.chat)._flows.waiters
        until(lambda: any(w.waited for every in list(registry._by_key.values()) for w in list(every)), what="a waiter")


class Unreachable(channels.Channel):
    """A server that takes no connection, or, `up`, one that ends each as soon as it stands."""

    up = False

    def _send(self, names: list[str]) -> None: ...

    def _listen(self) -> None:
        if self.up:
            self._listening()
        raise ConnectionError

    def _disconnect(self) -> None: ...
