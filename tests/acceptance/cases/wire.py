"""T: the wire gate, a TCP proxy in front of PostgreSQL or Redis."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Literal, Self
from urllib.parse import urlsplit

from tests.support.waiting import Gate

PG_READY = b"Z\x00\x00\x00\x05"
"""PostgreSQL's ReadyForQuery: the end of every reply."""

Action = Literal["hold", "hold_reply", "cut_before", "cut_after"]


class Rule(Gate):
    """What happens once to the connection that sends `steps` in this order, at the message that holds the last one."""

    def __init__(self, steps: tuple[bytes, ...], action: Action) -> None:
        super().__init__()
        self.steps, self.action = steps, action
        self.used = False


class Proxy:
    """Forwards every byte, except where a rule says otherwise.

    hold: the message waits at the gate.  hold_reply: it reaches the server, its reply waits at the gate.
    cut_before: the connection is cut and the server never sees the message.  cut_after: the server has answered in
    full, and the connection is cut before the client hears of it: an ambiguous commit.
    """

    def __init__(self, url: str, reply_end: bytes = PG_READY) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        self._server = (parts.hostname, parts.port)
        self._reply_end = reply_end
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = url.replace(f":{parts.port}", f":{self.port}")
        self.down = False
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._wires: list[Wire] = []
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on(self, *steps: bytes, do: Action) -> Rule:
        """Adds a rule; it serves once, and is a Gate: `wait_entered` returns when it has struck."""
        rule = Rule(steps, do)
        with self._lock:
            self._rules.append(rule)
        return rule

    def cut_all(self) -> None:
        """Cuts every connection, as a server that crashes; with `down` set, new ones are refused too."""
        with self._lock:
            wires = list(self._wires)
        for wire in wires:
            wire.cut()

    def close(self) -> None:
        self._listener.close()
        for rule in self._rules:
            rule.open()
        self.cut_all()

    def matched(self, wire: Wire, data: bytes) -> Rule | None:
        """The rule that strikes at this message."""
        with self._lock:
            for rule in self._rules:
                if rule.used:
                    continue
                seen = wire.progress.get(rule, 0)
                while seen < len(rule.steps) and rule.steps[seen] in data:
                    seen += 1
                wire.progress[rule] = seen
                if seen == len(rule.steps):
                    rule.used = True
                    return rule
        return None

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.down:
                    client.close()
                    continue
                with self._lock:
                    self._wires.append(Wire(self, client, self._server, self._reply_end))


class Wire:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: tuple[str, int], reply_end: bytes) -> None:
        self.progress: dict[Rule, int] = {}
        self._proxy, self._client, self._reply_end = proxy, client, reply_end
        self._server = socket.create_connection(server)
        self._reply_rule: Rule | None = None
        for pump in (self._to_server, self._to_client):
            threading.Thread(target=self._run, args=(pump,), name="wire", daemon=True).start()

    def cut(self) -> None:
        """Both ends see the connection end."""
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _run(self, pump: object) -> None:
        with suppress(OSError):
            pump()  # type: ignore[operator]
        self.cut()

    def _to_server(self) -> None:
        while data := self._client.recv(1 << 20):
            rule = self._proxy.matched(self, data)
            if rule is not None:
                if rule.action == "cut_before":
                    rule.entered.set()
                    return
                if rule.action == "hold":
                    rule.hold()
                else:
                    self._reply_rule = rule
            self._server.sendall(data)

    def _to_client(self) -> None:
        held = b""
        while data := self._server.recv(1 << 20):
            rule = self._reply_rule
            if rule is None:
                self._client.sendall(data)
                continue
            held += data
            if self._reply_end not in held:
                continue
            if rule.action == "cut_after":
                rule.entered.set()
                return
            rule.hold()
            self._reply_rule = None
            self._client.sendall(held)
            held = b""
