"""A transaction pooler in front of PostgreSQL: each transaction gets another server session, and nothing is reset."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections import defaultdict, deque
from contextlib import suppress
from urllib.parse import urlsplit

from tests.support.waiting import SECONDS_MAX

SESSIONS = 6
LEFT_BEHIND = b"SET default_transaction_isolation = 'repeatable read'"
"""What another application left in every second session."""
SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102


def message(kind: bytes, body: bytes) -> bytes:
    """A message of PostgreSQL's protocol."""
    return kind + struct.pack("!I", len(body) + 4) + body


class Stream:
    """One connection, read by the message."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._file = connection.makefile("rb")

    def read(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise ConnectionError
        return data

    def startup(self) -> bytes:
        """The first message, which has no kind."""
        (length,) = struct.unpack("!I", self.read(4))
        return self.read(length - 4)

    def next(self) -> tuple[bytes, bytes]:
        """The kind of the next message, and all of it."""
        kind = self.read(1)
        length = self.read(4)
        return kind, kind + length + self.read(struct.unpack("!I", length)[0] - 4)

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class Session:
    """A session of the server, and what it said when it began."""

    def __init__(self, server: tuple[str, int], startup: bytes, left_behind: bytes | None) -> None:
        self.stream = Stream(socket.create_connection(server, SECONDS_MAX))
        self.stream.send(struct.pack("!I", len(startup) + 4) + startup)
        self.greeting = self.until_ready()[1]
        if left_behind is not None:
            self.stream.send(message(b"Q", left_behind + b"\0"))
            self.until_ready()

    def until_ready(self, to: Stream | None = None) -> tuple[bytes, bytes]:
        """Everything up to ReadyForQuery, passed on to `to`; the transaction's status, and all of it."""
        said = b""
        while True:
            kind, data = self.stream.next()
            said += data
            if to is not None:
                to.send(data)
            if kind == b"Z":
                return data[-1:], said


class Pooler:
    """Listens until closed.  `transactions` counts what each session of the server served."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = self._listener.getsockname()[1]
        self._free: dict[bytes, deque[Session]] = defaultdict(deque)
        self._changed = threading.Condition()
        self._streams: list[Stream] = []
        threading.Thread(target=self._accept, name="pooler", daemon=True).start()

    def close(self) -> None:
        """Ends every connection."""
        self._listener.close()
        for stream in self._streams:
            stream.close()

    def url_of(self, url: str) -> str:
        """The same database, through the pooler."""
        return url.replace(f":{self._server[1]}/", f":{self.port}/")

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                stream = Stream(self._listener.accept()[0])
                self._streams.append(stream)
                threading.Thread(target=self._serve, args=(stream,), name="pooled", daemon=True).start()

    def _serve(self, client: Stream) -> None:
        with suppress(OSError):
            startup = client.startup()
            while (code := struct.unpack("!I", startup[:4])[0]) in (SSL_REQUEST, GSS_REQUEST):
                client.send(b"N")
                startup = client.startup()
            if code != CANCEL_REQUEST:
                # options of a session (search_path, ..) are the pooler's own affair
                self._prepare(startup)
                client.send(self._free[startup][0].greeting)
                self._transactions(client, startup)
        client.close()

    def _prepare(self, startup: bytes) -> None:
        with self._changed:
            if startup in self._free:
                return
            for number in range(SESSIONS):
                session = Session(self._server, startup, LEFT_BEHIND if number % 2 else None)
                self._streams.append(session.stream)
                self._free[startup].append(session)

    def _transactions(self, client: Stream, startup: bytes) -> None:
        """Each request goes to the session that has rested longest, and stays there until no transaction is open."""
        kind, data = client.next()
        while kind != b"X":
            with self._changed:
                assert self._changed.wait_for(lambda: self._free[startup], SECONDS_MAX), "every session is taken"
                session = self._free[startup].popleft()
            try:
                for first in itertools.chain([(kind, data)], iter(client.next, None)):
                    session.stream.send(first[1])
                    if first[0] in (b"Q", b"S") and session.until_ready(client)[0] == b"I":
                        break
            finally:
                with self._changed:
                    self._free[startup].append(session)
                    self._changed.notify_all()
            kind, data = client.next()
