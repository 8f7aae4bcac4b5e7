"""Write docs/images/ui-*.png: the web view over a small database that is made for it, in a real Chromium."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from chatlock import Chatlock, Limits
from chatlock.console import Console
from chatlock.executor import Executor
from chatlock.ops.load import read_clock
from chatlock.ops.windows import DAY_MS
from chatlock.schema import due, meta, threads, turns, windows
from chatlock.service.health import HealthServer
from chatlock.service.ui import View
from tools.shot import capture

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

TOKEN = "a token for a picture"
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
# agent: typical run in ms, spread, runs a day
AGENTS = {"support": (9_000, 0.5, 260), "research": (95_000, 0.7, 70)}
RUNNING = {
    "order-4711": ("support", 4_000),
    "onboarding-ines": ("support", 11_000),
    "market-report": ("research", 380_000),
}
WAITING = ("invoice-march", "order-4720", "refund-88")
STUCK = {"night-digest": 41 * MINUTE_MS, "weekly-export": 12 * MINUTE_MS}


def populate(url: str) -> None:
    """Two days of runs, and threads that run, wait, are stuck, and gave a message up."""
    with Chatlock(url, tenant="acme", poller=False, heartbeat=False, limits=Limits(attempts_max=1)) as chat:
        chat.setup()
        for thread, (agent, _) in RUNNING.items():
            chat.begin(thread, "hello", agent=agent)
            chat.submit(thread, "are you there?", agent=agent, wait_ms=0)
        for thread in WAITING:
            chat.submit(thread, "hello", agent="support", wait_ms=0)
        for thread in STUCK:
            chat.submit(thread, "hello", agent="batch", tenant="globex", wait_ms=0)
        for thread, error in (("attachment-9", ValueError), ("order-4702", TimeoutError)):
            turn = chat.begin(thread, {"text": "hello"}, message_id=f"{thread}-1", agent="support")
            assert hasattr(turn, "fail")
            turn.fail(error("a word that nobody sees"))
        for number in range(6):
            turn = chat.begin(f"order-{4690 + number}", "hello", agent="support")
            assert hasattr(turn, "finish")
            turn.finish("done")
        chat._executor.transaction("populate", _age)


def _age(conn: Connection) -> None:
    now, chance = read_clock(conn), random.Random(4)
    for thread, (_, ago_ms) in RUNNING.items():
        times = {
            "claimed_at": now - ago_ms,
            "expires_at": now + 9_000,
            "window_ends_at": now + 10 * MINUTE_MS,
            "beat": 3,
        }
        conn.execute(threads.update().where(threads.c.thread_id == thread).values(times))
        conn.execute(turns.update().where(turns.c.thread_id == thread).values(started_at=now - ago_ms))
    for thread, ago_ms in STUCK.items():
        conn.execute(due.update().where(due.c.thread_id == thread).values(due_at=now - ago_ms))
    conn.execute(turns.update().where(turns.c.state == "done").values(started_at=turns.c.ended_at - 8_000))
    conn.execute(meta.update().where(meta.c.name == "windows_through").values(value=now - 5_000))
    for agent, (typical_ms, spread, per_day) in AGENTS.items():
        lengths = [int(chance.lognormvariate(0, spread) * typical_ms) for _ in range(2 * per_day)]
        ends = sorted(now - int(chance.random() ** 0.8 * 47 * HOUR_MS) for _ in lengths)
        rows = [
            {
                "tenant": "acme",
                "thread_id": f"{agent}-{n}",
                "incarnation": 1,
                "token": 1,
                "claim_id": "c",
                "agent": agent,
            }
            | {"from_seq": 0, "to_seq": 1, "state": "done", "started_at": end - length, "ended_at": end}
            for n, (end, length) in enumerate(zip(ends, lengths, strict=True))
        ]
        conn.execute(turns.insert(), rows)
        day = {"agent": agent, "day": now // DAY_MS, "longest_ms": max(lengths), "total_ms": sum(lengths)}
        conn.execute(windows.insert(), {**day, "runs": len(lengths)})


def main() -> None:
    """Every picture of the view."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder, 'chat.db')}"
        populate(url)
        executor = Executor(url, pool_size=2, pooler=None)
        server = HealthServer("127.0.0.1", 0, {}, View(Console(executor), TOKEN).answer)
        server.start()
        try:
            base = f"http://127.0.0.1:{server.port}/ui"
            token = TOKEN.replace(" ", "%20")
            capture(f"{base}?token={token}", "ui-threads", width=1280, height=1010)
            capture(f"{base}/windows?token={token}", "ui-windows", width=1280, height=860)
        finally:
            server.close()
            executor.close()


if __name__ == "__main__":
    main()
