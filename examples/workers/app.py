"""The application that the workers serve: an agent that thinks, answers, and logs every reply that it sent.

Its two logs lie outside chatlock's tables, a line a reply and a line a turn that began.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from chatlock import Chatlock, Turn
from chatlock.wake.redis import RedisWake

THINK_S = float(os.environ.get("DEMO_THINK_S", "0.2"))
LOGS = Path(os.environ.get("DEMO_LOGS", "."))

chat = Chatlock(
    os.environ["CHATLOCK_URL"],
    tenant="demo",
    poller=False,
    pool_size=2,
    wake=RedisWake(os.environ["CHATLOCK_REDIS_URL"]),
)


def log(name: str, **facts: Any) -> None:
    """Appends one line; O_APPEND keeps the lines of several processes whole."""
    with (LOGS / name).open("a") as file:
        file.write(json.dumps(facts) + "\n")


@chat.handler()
def answer(turn: Turn) -> None:
    """Thinks, answers everything it fetched, and only then counts the reply as sent."""
    ids = [message.message_id for message in turn.messages]
    log("began.jsonl", thread=turn.key.thread, token=turn.token, pid=os.getpid(), ids=ids)
    time.sleep(THINK_S)
    turn.finish({"answers": ids})
    log("sent.jsonl", thread=turn.key.thread, token=turn.token, ids=ids)
