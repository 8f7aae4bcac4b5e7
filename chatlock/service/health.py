"""/livez, /readyz, /metrics and /ui on a small HTTP server in OS threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

REQUEST_S = 5


class Page(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = {}


class HealthServer:
    """Serves one page for each path, and what is below /ui by `view`; port 0 takes any free one."""

    def __init__(
        self,
        host: str,
        port: int,
        pages: Mapping[str, Callable[[], Page]],
        view: Callable[[str, dict[str, str]], Page] | None = None,
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_S

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if view is not None and f"{path}/".startswith("/ui/"):
                    page = view(self.path, dict(self.headers.items()))
                else:
                    page = pages.get(path, _unknown)()
                self.send_response(page.status)
                for name, value in page.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", page.content_type)
                self.send_header("Content-Length", str(len(page.body)))
                self.end_headers()
                self.wfile.write(page.body)

            def log_message(self, format: str, *args: object) -> None:
                """Probes are not worth a line."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._os_thread = threading.Thread(target=self._server.serve_forever, name="chatlock-health", daemon=True)

    def start(self) -> None:
        """Begins to answer."""
        self._os_thread.start()

    def close(self) -> None:
        """Answers no more."""
        if self._os_thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


def _unknown() -> Page:
    return Page(404, b"see /livez, /readyz and /metrics\n")
