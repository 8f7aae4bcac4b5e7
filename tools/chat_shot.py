"""Take the picture of the example's chat page: three messages in a row, sent to both sides."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import httpx

from examples.fastapi_chat.app import application, visitor
from examples.fastapi_chat.check import Person, burst
from examples.fastapi_chat.serving import serving
from tools.shot import capture

THINK_S, BETWEEN_S = 2.0, 0.5
THREAD = "picture"


async def talk(address: str) -> None:
    """Sends the messages, and waits for the answers."""
    async with httpx.AsyncClient(base_url=address, timeout=60) as http:
        await asyncio.gather(*(burst(Person(http, side, THREAD), BETWEEN_S) for side in ("without", "with")))


def main() -> int:
    """The page after the answers."""
    with tempfile.TemporaryDirectory(prefix="chatlock-chat-") as folder:
        app = application(f"sqlite:///{Path(folder) / 'chat.db'}", THINK_S)
        app.dependency_overrides[visitor] = lambda: "ann"  # the browser's cookie is not the one that talked
        with serving(app) as (_, address):
            asyncio.run(talk(address))
            capture(f"{address}/#{THREAD}", "chat", width=1180, height=790, settle_ms=3000)
    return 0


if __name__ == "__main__":
    sys.exit(main())
