"""How long `chatlock threads ls --stuck` and a poller's look take on a large store.

    python -m bench.stuck [--db sqlite|postgres] [--threads 1000000]

The store has that many threads, each with an answered turn.  A thousand run, of which ten are stale; then a thousand
are due, and then a tenth of all of them, nearly all of one tenant.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.quick import databases
from chatlock import Chatlock
from chatlock.console import Console, Scope

RUNNING, STALE, DUE, TENANTS = 1_000, 10, 1_000, 100
BATCH = 100
REPEATS, COMMANDS = 7, 2
NUMBERS = {
    "sqlite": "WITH RECURSIVE s(n) AS (VALUES ({first}) UNION ALL SELECT n+1 FROM s WHERE n<{last}) SELECT n FROM s",
    "postgresql": "SELECT n FROM generate_series({first}, {last}) AS series(n)",
}
CLAIM = (
    "claim_id='c', owner='bench', status='running', token=2, last_seq=2, fetched_seq=2, lease_ms=10000,"
    " claimed_at={now}, expires_at={now}+600000, window_ends_at={now}+600000"
)
TURN = "chatlock_turns(tenant, thread_id, incarnation, token, claim_id, from_seq, state, started_at, to_seq, ended_at)"


def fill(chat: Chatlock, threads: int) -> None:
    """Answered threads; the first of them run, some past their lease."""
    now, every, running, stale = int(time.time() * 1000), *(numbers(chat, 1, n) for n in (threads, RUNNING, STALE))
    for statement in (
        "INSERT INTO chatlock_threads(tenant, thread_id, token, last_seq, fetched_seq, done_seq)"
        f" SELECT 'acme', 't'||n, 1, 1, 1, 1 FROM {every}",
        f"INSERT INTO {TURN} SELECT 'acme', 't'||n, 1, 1, 'c', 0, 'done', {now}-n, 1, {now}-n FROM {every}",
        f"INSERT INTO {TURN} SELECT 'acme', 't'||n, 1, 2, 'c', 1, 'running', {now}, NULL, NULL FROM {running}",
        f"UPDATE chatlock_threads SET {CLAIM.format(now=now)} WHERE thread_id IN (SELECT 't'||n FROM {running})",
        f"UPDATE chatlock_threads SET expires_at={now}-400000 WHERE thread_id IN (SELECT 't'||n FROM {stale})",
        "ANALYZE",
    ):
        execute(chat, statement)


def make_due(chat: Chatlock, first: int, last: int) -> None:
    """These threads of one tenant wait, and one thread of each of a hundred others."""
    waiting, others = numbers(chat, first, last), numbers(chat, 1, TENANTS)
    for statement in (
        f"UPDATE chatlock_threads SET last_seq=2 WHERE thread_id IN (SELECT 't'||n FROM {waiting})",
        f"INSERT INTO chatlock_due(tenant, thread_id, due_at) SELECT 'acme', 't'||n, n FROM {waiting}",
        "INSERT INTO chatlock_threads(tenant, thread_id, last_seq)"
        f" SELECT 'o'||n, 't1', 1 FROM {others} WHERE true ON CONFLICT DO NOTHING",
        "INSERT INTO chatlock_due(tenant, thread_id, due_at)"
        f" SELECT 'o'||n, 't1', {last}+n FROM {others} WHERE true ON CONFLICT DO NOTHING",
        "ANALYZE",
    ):
        execute(chat, statement)


def numbers(chat: Chatlock, first: int, last: int) -> str:
    """A table of the numbers n."""
    return f"({NUMBERS[chat._executor.engine.dialect.name].format(first=first, last=last)}) AS numbers"


def execute(chat: Chatlock, statement: str) -> None:
    with chat._executor.engine.connect() as conn:
        conn.exec_driver_sql(statement)


def timed(name: str, call: Callable[[], list[Any]], repeats: int = REPEATS) -> None:
    """Prints the median and the longest of a few calls, after one that warms up."""
    found, times = len(call()), []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1000)
    print(f"{name}: {found} found, median {statistics.median(times):.1f} ms, longest {max(times):.1f} ms", flush=True)


def by_command(url: str) -> list[Any]:
    """The command as a process of its own: what an operator waits for."""
    script = Path(sys.executable).with_name("chatlock")
    arguments = [str(script), "threads", "ls", "--stuck", "--older", "5m", "--all-tenants", "--limit", "100", "--json"]
    done = subprocess.run(
        arguments, env={**os.environ, "CHATLOCK_URL": url}, capture_output=True, text=True, check=False
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    """Fills the store, and measures."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--db", choices=("sqlite", "postgres"), default="postgres")
    options.add_argument("--threads", type=int, default=1_000_000)
    chosen = options.parse_args()
    with databases(chosen.db) as (url, _), Chatlock(url, tenant="bench", poller=False) as chat:
        fill(chat, chosen.threads)
        console = Console(chat._executor)
        print(f"{chosen.db}, {chosen.threads:,} threads, load {os.getloadavg()[0]:.1f}", flush=True)
        for share, last in (("a thousand due", RUNNING + DUE), ("a tenth due", RUNNING + chosen.threads // 10)):
            make_due(chat, RUNNING + 1 if last == RUNNING + DUE else RUNNING + DUE + 1, last)
            timed(f"{share}: stuck", lambda: console.stuck(Scope(None), 300_000, 100))
            timed(f"{share}: the whole command", lambda: by_command(url), COMMANDS)
            timed(f"{share}: a poller's look", lambda: chat._sweep.due(["default"], BATCH))


if __name__ == "__main__":
    main()
