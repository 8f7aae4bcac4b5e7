"""A real server in an OS thread of this process, on a port of its own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

START_S, STOP_S = 30, 30


@contextmanager
def serving(app: FastAPI) -> Iterator[tuple[FastAPI, str]]:
    """The application and its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        os_thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        os_thread.start()
        deadline = time.monotonic() + START_S
        while not server.started and os_thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        if not server.started:
            raise RuntimeError("the server did not start")
        try:
            yield app, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            os_thread.join(STOP_S)
