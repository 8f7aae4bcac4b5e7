"""Serve the page, or check it: python -m examples.fastapi_chat [--check]."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import uvicorn

from examples.fastapi_chat.app import application
from examples.fastapi_chat.check import check
from examples.fastapi_chat.serving import serving

CHECK_THINK_S = 0.3


def main() -> int:
    """Exit code 1: a message was lost or answered twice."""
    parser = argparse.ArgumentParser(prog="python -m examples.fastapi_chat")
    parser.add_argument("--check", action="store_true", help="drive it over HTTP and judge what became of the messages")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--think-s", type=float, default=4.0, help="how long the agent takes for a reply")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chatlock-chat-") as folder:
        url = f"sqlite:///{Path(folder) / 'chat.db'}"
        if options.check:
            with serving(application(url, CHECK_THINK_S)) as (app, address):
                return asyncio.run(check(app, address))
        print(f"Open http://127.0.0.1:{options.port} and send two messages in a row; Ctrl-C ends it", flush=True)
        uvicorn.run(
            application(url, options.think_s), port=options.port, log_level="warning", timeout_graceful_shutdown=2
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
