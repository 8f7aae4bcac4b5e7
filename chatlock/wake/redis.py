"""Wakes over Redis or Valkey pub/sub.  Only hashes of keys travel; losing Redis loses nothing but milliseconds."""

from __future__ import annotations

import socket
from typing import Any

from chatlock.errors import StoreUnavailable
from chatlock.wake.channel import LISTEN_S, Channel

CHANNEL = "chatlock:wake"
SOCKET_S = 2.0
HEALTH_S = 15
UNANSWERED_MAX = 4
# a half-open connection is noticed within half a minute; until then the poll interval decides
ALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2), ("TCP_USER_TIMEOUT", 15_000))
    if hasattr(socket, name)
}


class RedisWake(Channel):
    """One channel for all threads.  Needs the extra redis.

    Args:
        url: Where Redis or Valkey is: redis://host:port/db.
    """

    def __init__(self, url: str) -> None:
        try:
            import redis
        except ModuleNotFoundError:
            raise StoreUnavailable("the Redis wake needs redis: install chatlock with its extra 'redis'") from None
        self._url, self._library = url, redis
        super().__init__()

    def after_fork(self) -> None:
        """See Channel."""
        super().after_fork()
        self._client: Any = None

    def _connected(self) -> Any:
        if self._client is None:
            self._client = self._library.Redis.from_url(
                self._url,
                socket_timeout=SOCKET_S,
                socket_connect_timeout=SOCKET_S,
                socket_keepalive=True,
                socket_keepalive_options=ALIVE,
                health_check_interval=HEALTH_S,
            )
        return self._client

    def _send(self, names: list[str]) -> None:
        pipeline = self._connected().pipeline(transaction=False)
        for name in names:
            pipeline.publish(CHANNEL, name)
        pipeline.execute()

    def _listen(self) -> None:
        subscription = self._connected().pubsub()
        try:
            subscription.subscribe(CHANNEL)
            while not self.closed:
                message = subscription.get_message(timeout=LISTEN_S)
                if message is None:
                    self._check_answers(subscription)
                elif message["type"] == "subscribe":  # also after redis-py has connected again by itself
                    self._listening()
                elif message["type"] == "message":
                    self._woken(message["data"].decode(errors="replace"))
        finally:
            subscription.close()

    def _check_answers(self, subscription: Any) -> None:
        """redis-py pings a silent subscription at every read, and waits for ever for what a broken path swallows."""
        if subscription.health_check_response_counter > UNANSWERED_MAX:
            raise self._library.ConnectionError("the subscription does not answer")

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
