"""One HTTP exchange with an ASGI application, without a server: a client that goes away when the test says so."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.waiting import SECONDS_MAX


class Exchange:
    """`spec` "2.3": a client that has gone is told by receive.  "2.4": also by send, which raises OSError."""

    def __init__(self, app: Any, path: str, body: bytes = b'"x"', spec: str = "2.3", method: str = "POST") -> None:
        self._app, self._raises, self._gone = app, spec >= "2.4", asyncio.Event()
        self.sent: list[Any] = []
        self._parts = [{"type": "http.request", "body": body, "more_body": False}]
        self._arrived = asyncio.Condition()
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": spec},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }

    def start(self) -> asyncio.Task[None]:
        """The application begins."""
        self.task = asyncio.ensure_future(self._app(self.scope, self._receive, self._send))
        return self.task

    async def run(self) -> int:
        """From beginning to end; the status."""
        await asyncio.wait_for(self.start(), SECONDS_MAX)
        return self.status

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    def disconnect(self) -> None:
        """The client goes away."""
        self._gone.set()

    async def until_sent(self, text: bytes) -> None:
        """Until the client has received the text."""
        async with asyncio.timeout(SECONDS_MAX), self._arrived:
            await self._arrived.wait_for(lambda: text in self.body)

    async def until_complete(self) -> None:
        """Until the client has received the end of the answer."""
        async with asyncio.timeout(SECONDS_MAX), self._arrived:
            await self._arrived.wait_for(lambda: self.sent and self.sent[-1].get("more_body") is False)

    async def _receive(self) -> dict[str, Any]:
        if self._parts:
            return self._parts.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self._gone.is_set() and self._raises:
            raise OSError("the client has gone")
        async with self._arrived:
            self.sent.append(message)
            self._arrived.notify_all()
