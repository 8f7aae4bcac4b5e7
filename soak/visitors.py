"""People in front of browsers: real HTTP, clients that go away in mid-stream, time out, and send the same key again."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import closing, suppress
from dataclasses import MISSING, fields
from typing import Any

import chatlock
from chatlock import Outcome, StoreUnavailable
from chatlock.inputs import Key
from soak.life import TENANT, Birth, Life
from soak.roles import Sender

VISITORS = 4
"""OS threads of a process."""
OK = {"kind": "ok"}
JSON = {"Content-Type": "application/json"}
PATIENCE_S = (0.05, 0.5, 3.0, 10.0)
PROBLEMS = {
    "idempotency-key-reused": "Conflict",
    "thread-busy": "Busy",
    "thread-deleted": "Gone",
    "not-found": "NotFound",
    "unknown": "Unknown",
}
"""Problems that say what became of the message; after any other the message is asked for."""


class Visitor(Sender):
    """Sends over HTTP what others send through a client, and notes what it is told."""

    def act(self) -> None:
        if not self.life.weather["storm"]:
            self.life.rest(0.1)
            return
        kind = self.random.choice(["c", "w", "w"])
        thread = f"{self.life.weather['generation']}-{kind}{self.random.randrange(8)}"
        act = self.random.choices([self._post, self._stream, self._cancel, self._attach], [30, 30, 10, 20])[0]
        act(thread, self.new_id())
        self.life.rest(self.random.choice([0.0, 0.05, 0.2]))

    # -- what is done ------------------------------------------------------------------------------------------------
    def _post(self, thread: str, message_id: str) -> None:
        """Until it is told an outcome, each time with the patience of the moment."""
        self.deliver(thread, message_id, OK)

    def _stream(self, thread: str, message_id: str) -> None:
        """Reads events, goes away at some point, and comes back for the rest or sends the message again."""
        headers = JSON | {"Idempotency-Key": message_id, "Accept": "text/event-stream"}
        key = Key(TENANT, thread)
        call = self.history.asked(key, "submit", message_id, OK)
        with suppress(OSError, http.client.HTTPException):
            self._read_events(key, call, "POST", f"/threads/{thread}/messages", headers)
        call = self.history.asked(key, "status", message_id)
        with suppress(OSError, http.client.HTTPException):
            self._read_events(key, call, "GET", f"/threads/{thread}/messages/{message_id}/events", {})
        self.deliver(thread, message_id, OK)

    def _cancel(self, thread: str, message_id: str) -> None:
        self.deliver(thread, message_id, OK)
        key, path = Key(TENANT, thread), f"/threads/{thread}/messages/{message_id}/cancel"
        call = self.history.asked(key, "cancel", message_id)
        status, document = self._exchange("POST", path, JSON, None)
        if status == 200:
            self.told(key, call, outcome_of(document))

    def _attach(self, thread: str, message_id: str) -> None:
        """A turn that lives as long as this request; perhaps that is not long."""
        self.history.asked(Key(TENANT, thread), "submit", message_id, OK)
        headers = JSON | {"Idempotency-Key": message_id, "Prefer": "wait=1"}
        with suppress(OSError, http.client.HTTPException), closing(self._connection()) as connection:
            connection.request("POST", f"/attached/{thread}", json.dumps(OK), headers)
            response = connection.getresponse()
            if self._leaves():
                response.read(len("begun\n"))
            else:
                response.read()
        self.deliver(thread, message_id, OK)

    # -- over HTTP ---------------------------------------------------------------------------------------------------
    def submit(self, thread: str, message_id: str, payload: Any, **options: Any) -> Outcome:
        """One POST, and a GET where its answer does not say it all.  Raises StoreUnavailable if none comes."""
        key, path = Key(TENANT, thread), f"/threads/{thread}/messages"
        headers = JSON | {"Idempotency-Key": message_id, "Prefer": f"wait={self.random.choice([0, 1, 5])}"}
        call = self.history.asked(key, "submit", message_id, payload)
        status, document = self._exchange("POST", path, headers, payload)
        if status < 300:
            return self.told(key, call, outcome_of(document))
        problem = document["type"].rpartition(":")[2]
        if problem in PROBLEMS:
            return self.told(key, call, made(PROBLEMS[problem], {"message_id": message_id}))
        call = self.history.asked(key, "status", message_id)
        status, document = self._exchange("GET", f"{path}/{message_id}", {}, None)
        if status != 200:
            raise StoreUnavailable(f"the web process answered {status}")
        return self.told(key, call, outcome_of(document))

    def _connection(self) -> http.client.HTTPConnection:
        port, patience_s = self.life.ground.web_port, self.random.choice(PATIENCE_S)
        return http.client.HTTPConnection("127.0.0.1", port, timeout=patience_s)

    def _exchange(self, method: str, path: str, headers: dict[str, str], payload: Any) -> tuple[int, Any]:
        try:
            with closing(self._connection()) as connection:
                connection.request(method, path, None if payload is None else json.dumps(payload), headers)
                response = connection.getresponse()
                return response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, TimeoutError):
                self.life.slot.add("left_early")
            raise StoreUnavailable("the web process cannot be reached") from None

    def _read_events(self, key: Key, call: str, method: str, path: str, headers: dict[str, str]) -> None:
        """Up to the outcome, or as far as this visitor stays."""
        with closing(self._connection()) as connection:
            connection.request(method, path, json.dumps(OK) if method == "POST" else None, headers)
            response = connection.getresponse()
            leaves_after, event = self.random.randrange(1, 6) if self._leaves() else None, ""
            while response.status == 200 and (line := response.readline()):
                name, _, data = line.decode().strip().partition(": ")
                event = data if name == "event" else event
                if (name, event) == ("data", "outcome"):
                    self.told(key, call, outcome_of(json.loads(data)))
                    return
                leaves_after = leaves_after and leaves_after - 1
                if leaves_after == 0:
                    self.life.slot.add("left_early")
                    if connection.sock is not None:
                        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    return

    def _leaves(self) -> bool:
        return self.random.random() < 0.5


def outcome_of(document: dict[str, Any]) -> Outcome:
    """What a JSON answer tells."""
    return made("".join(part.title() for part in document["outcome"].split("_")), document)


def made(name: str, document: dict[str, Any]) -> Outcome:
    """An outcome by its class; what the answer does not tell is None."""
    kind = getattr(chatlock, name)
    known = [field for field in fields(kind) if field.name in document or field.default is MISSING]
    outcome: Outcome = kind(**{field.name: document.get(field.name) for field in known})
    return outcome


def run_visitor(birth: Birth) -> None:
    """One life of a process of visitors."""
    life = Life(birth, polls=False)
    life.run(*[Visitor(life).act] * VISITORS)
