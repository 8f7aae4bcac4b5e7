"""make bench-quick: one hot thread, 1,000 waiting callers, and peak turns per second beside the raw statements.

    python -m bench.quick [--db sqlite|postgres] [--seconds 3]

Each scenario prints what it counted.  Speed is given as a ratio of the raw statements in the same run: this machine's
own speed drifts, the ratio does not.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg

from chatlock import AsyncChatlock, Chatlock
from chatlock.dialects import make_engine
from chatlock.inputs import Key, new_id, payload_json, reply_json
from chatlock.ops import hot
from chatlock.ops.claim import Request
from chatlock.ops.finish import Finish
from chatlock.ops.submit import Submission
from chatlock.protocol import Limits
from tests.support.servers import PostgreSQL

PAYLOAD = {"text": "hello there, this is a chat message of usual length"}
QUEUED = 1_000
WAITING = 1_000
CALLERS = 4


@contextmanager
def databases(kind: str) -> Iterator[list[str]]:
    """Two fresh databases of one server, with chatlock's tables: what burdens one is compared with the other."""
    names = ("one", "other")
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="chatlock-bench-") as folder:
            yield [set_up(f"sqlite:///{Path(folder) / name}.db") for name in names]
    else:
        with PostgreSQL() as server, psycopg.connect(server.url.replace("+psycopg", ""), autocommit=True) as connection:
            for name in names:
                connection.execute(f"CREATE DATABASE {name}")
            yield [set_up(server.url.removesuffix("postgres") + name) for name in names]


def set_up(url: str) -> str:
    """Creates the tables."""
    with Chatlock(url, tenant="bench", poller=False) as chat:
        chat.setup()
    return url


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def peak(url: str, seconds: float) -> None:
    """Uncontended turns by one caller, in rounds that alternate with the same two raw statements."""
    with Chatlock(url, tenant="bench", poller=False) as chat:
        chat.handler()(lambda turn: "ok")
        rounds, ratios, turns = 5, [], []
        for _ in range(rounds):
            through = rate(lambda n: chat.submit(f"t{n % 500}", PAYLOAD), seconds / rounds)
            raw = rate(raw_turn(url), seconds / rounds)
            turns.append(through)
            ratios.append(through / raw)
    print(
        f"peak: {statistics.median(turns):.0f} turns/s by one caller, {statistics.median(ratios):.2f} x the raw "
        f"statements ({min(ratios):.2f} to {max(ratios):.2f} in {rounds} rounds)",
        flush=True,
    )


def rate(work: Any, seconds: float) -> float:
    """Calls per second."""
    end, count = time.perf_counter() + seconds, 0
    start = time.perf_counter()
    while time.perf_counter() < end:
        work(count)
        count += 1
    return count / (time.perf_counter() - start)


def crowd(url: str, seconds: float) -> None:
    """Uncontended turns by several processes at once: what one database carries with its callers on the same cores."""
    with ProcessPoolExecutor(CALLERS, multiprocessing.get_context("spawn")) as callers:
        list(callers.map(call, [url] * CALLERS, [0.1] * CALLERS))  # every process has connected
        rates = callers.map(call, [url] * CALLERS, [seconds] * CALLERS)
        print(f"crowd: {sum(rates):.0f} turns/s by {CALLERS} processes on this machine", flush=True)


def call(url: str, seconds: float) -> float:
    """Turns a second of one process, on threads of its own."""
    with Chatlock(url, tenant=uuid.uuid4().hex, poller=False) as chat:
        chat.handler()(lambda turn: "ok")
        return rate(lambda number: chat.submit(f"t{number % 500}", PAYLOAD), seconds)


def raw_turn(url: str) -> Any:
    """The two hot statements on a bare driver connection."""
    engine = make_engine(url, pool_size=1)
    connection: Any = engine.raw_connection().driver_connection
    cursor, sqlite = connection.cursor(), engine.dialect.name == "sqlite"
    payload, digest = payload_json(PAYLOAD)
    reply = reply_json("ok")

    def turn(number: int) -> None:
        key = Key("bench", f"t{number % 500}")
        request = Request(new_id(), "raw", 10_000, 600_000, Limits())
        if sqlite:
            cursor.execute("BEGIN IMMEDIATE")
        stored = hot.hot_submit(cursor, Submission(key, uuid.uuid4().hex, payload, digest, "default"), request, 60_000)
        if sqlite:
            cursor.execute("COMMIT")
        if stored is None or stored.granted is None:
            return
        if sqlite:
            cursor.execute("BEGIN IMMEDIATE")
        hot.hot_finish(cursor, Finish(stored.granted.claim, stored.seq or 0, 1, reply))
        if sqlite:
            cursor.execute("COMMIT")

    return turn


def hot_thread(url: str, other_url: str, seconds: float) -> None:
    """Turns on other threads of a database in which one thread has 1,000 messages queued behind a running turn, in
    turn with the same in a database without.
    """
    with Chatlock(url, tenant="bench") as chat, Chatlock(other_url, tenant="bench") as other:
        entered, gate = threading.Event(), threading.Event()
        chat.handler("held")(lambda turn: entered.set() or (gate.wait() and "held"))
        for client in (chat, other):
            client.handler()(lambda turn: "ok")
        holder = threading.Thread(target=lambda: chat.submit("hot", PAYLOAD, agent="held"), daemon=True)
        holder.start()
        entered.wait()
        for _ in range(QUEUED):
            chat.submit("hot", PAYLOAD, agent="held", wait_ms=0)
        burdened, free = latencies((chat, other), seconds)
        gate.set()
        holder.join()
        chat.close(drain_ms=60_000)  # its poller has begun the turn over what is queued
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        ratio = percentile(burdened, share) / percentile(free, share)
        print(
            f"hot thread: {name} of other threads' turns {ratio:.2f} x with {QUEUED} messages queued on one "
            f"({len(free)} pairs)",
            flush=True,
        )


def latencies(chats: tuple[Chatlock, Chatlock], seconds: float) -> tuple[list[float], list[float]]:
    """Seconds per uncontended turn of two clients that take turns."""
    found: tuple[list[float], list[float]] = ([], [])
    end, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        for chat, times in zip(chats, found, strict=True):
            start = time.perf_counter()
            chat.submit(f"cold{number % 100}", PAYLOAD)
            times.append(time.perf_counter() - start)
        number += 1
    return found


async def waiting(url: str, seconds: float) -> None:
    """1,000 messages and 1,000 callers waiting behind one running turn: connections, OS threads, CPU."""
    process = psutil.Process(os.getpid())
    async with AsyncChatlock(url, tenant="bench", poller=True) as chat:
        entered, gate = asyncio.Event(), asyncio.Event()

        @chat.handler()
        async def held(turn: Any) -> str:
            entered.set()
            await gate.wait()
            return "ok"

        holder = asyncio.create_task(chat.submit("busy", PAYLOAD))
        await entered.wait()
        idle = await cpu_share(process, seconds)
        callers = [asyncio.create_task(chat.submit("busy", PAYLOAD, wait_ms=600_000)) for _ in range(WAITING)]
        while sum(waiter.pending_at is not None for waiter in waiters_of(chat)) < WAITING:  # noqa: ASYNC110  the shared look has no event for this
            await asyncio.sleep(0.1)
        before = process.num_threads(), len(process.net_connections())
        share = await cpu_share(process, seconds)
        after = process.num_threads(), len(process.net_connections())
        gate.set()
        told = await asyncio.gather(holder, *callers)
    print(
        f"waiting: {WAITING} callers behind one turn: {after[0]} OS threads and {after[1]} sockets in all "
        f"(no more than {before[0]} and {before[1]} before), {share - idle:+.1%} of a core over idle; "
        f"{len(told)} told",
        flush=True,
    )


def waiters_of(chat: AsyncChatlock) -> list[Any]:
    """Everyone who waits in this process."""
    return [waiter for waiters in list(chat._flows.waiters._by_key.values()) for waiter in waiters]


async def cpu_share(process: psutil.Process, seconds: float) -> float:
    """This process's share of one core over some seconds."""
    start, used = time.perf_counter(), sum(process.cpu_times()[:2])
    await asyncio.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - used) / (time.perf_counter() - start)


def main() -> None:
    """Runs the scenarios on one database."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--db", choices=("sqlite", "postgres"), default="postgres")
    options.add_argument("--seconds", type=float, default=3.0)
    chosen = options.parse_args()
    with databases(chosen.db) as (url, other_url):
        print(f"{chosen.db}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
        peak(url, chosen.seconds)
        crowd(url, chosen.seconds)
        hot_thread(url, other_url, chosen.seconds)
        asyncio.run(waiting(url, chosen.seconds))


if __name__ == "__main__":
    main()
