"""One HTTP exchange, watched: whether the client went away before its answer was complete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import quote

from chatlock import AsyncTurn, ChatlockError, InvalidInput

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_NAME = "chatlock.connection"


class App(Protocol):
    """An ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class ClientGone(InvalidInput):
    """The client went away before it had sent its request."""

    def __init__(self) -> None:
        super().__init__("client_gone", "the client went away before it had sent its request")


def path_of(scope: Scope) -> str:
    """The path that the client asked for, quoted."""
    root, path = scope.get("root_path", ""), scope["path"]
    return quote(path if path.startswith(root) else root + path, safe="/", errors="replace")


async def parts_of(receive: Receive) -> AsyncIterator[bytes]:
    """The parts of a request's body.  Raises ClientGone."""
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        yield message.get("body", b"")
        more = message.get("more_body", False)


class Connection:
    """Stands between a server and an application, which call `receive` and `send`."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._unread: list[Message] = []
        self.read = self.begun = self._complete = self.gone = False

    async def receive(self) -> Message:
        """The next message of the server."""
        message = self._unread.pop() if self._unread else await self._receive()
        self.gone |= message["type"] == "http.disconnect" and not self._complete
        self.read |= message["type"] == "http.request" and not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Sends a message to the client."""
        self.begun = True
        try:
            await self._send(message)
        except OSError:
            self.gone = True
            raise
        self._complete |= message["type"] == "http.response.body" and not message.get("more_body", False)

    def unread(self, body: bytes) -> None:
        """The application reads the body again."""
        self._unread.append({"type": "http.request", "body": body, "more_body": False})

    @asynccontextmanager
    async def releasing(self, turn: AsyncTurn) -> AsyncIterator[None]:
        """Hands an unfinished turn back, uncharged, if the client has gone, whatever the framework raises."""
        try:
            yield
        finally:
            if self.gone:
                await turn.release()


class Watched:
    """A pure ASGI middleware: lets whatever is inside ask for its connection."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[_NAME] = connection = Connection(receive, send)
            receive, send = connection.receive, connection.send
        await self._app(scope, receive, send)


def connection_of(scope: Scope) -> Connection:
    """The connection of a request.  Raises ChatlockError where nothing watches it."""
    found = scope.get(_NAME)
    if not isinstance(found, Connection):
        raise ChatlockError("a turn over a request needs install(app), which watches whether the client goes away")
    return found
