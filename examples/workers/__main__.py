"""python -m examples.workers [--messages 90] [--seconds 60]

Starts PostgreSQL, Valkey, a poller and two workers, submits real arrivals, kills one worker in the middle of a turn,
stops another past its lease and resumes it, and judges by the agent's own log.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console

from chatlock import Chatlock
from examples.demo import arrivals as source
from examples.demo.arrivals import Arrival
from examples.demo.postgres import running_postgres
from examples.workers.processes import Fleet, kill_whole, lines, send, until, whole
from examples.workers.valkey import running_valkey

console = Console()
RECOVERED_S_MAX = 20


@dataclass
class Stage:
    """Where everything is."""

    url: str
    logs: Path
    fleet: Fleet
    workers: list[subprocess.Popen[bytes]]

    def began(self) -> list[dict[str, Any]]:
        """Turns that began, by the agent's log."""
        return lines(self.logs / "began.jsonl")

    def sent(self) -> list[dict[str, Any]]:
        """Replies that were sent, by the agent's log."""
        return lines(self.logs / "sent.jsonl")

    def answered(self) -> set[str]:
        """The messages whose reply was sent."""
        return {i for line in self.sent() for i in line["ids"]}

    def running(self, worker: subprocess.Popen[bytes]) -> dict[str, Any] | None:
        """A turn that runs in the worker now."""
        pids = {member.pid for member in whole(worker)}
        over = {(line["thread"], line["token"]) for line in self.sent()}
        mine = [b for b in self.began() if b["pid"] in pids and (b["thread"], b["token"]) not in over]
        return mine[-1] if mine else None

    def later_turn(self, turn: dict[str, Any]) -> bool:
        """Whether a later turn over the same thread has begun."""
        return any(b["thread"] == turn["thread"] and b["token"] > turn["token"] for b in self.began())

    def freed_and_claimed(self, turn: dict[str, Any]) -> tuple[int, int]:
        """When the turn was reclaimed and its thread claimed again, in ms since 1970."""
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            rows = connection.execute(
                "SELECT started_at, ended_at FROM chatlock_turns WHERE thread_id = %s AND token >= %s ORDER BY token",
                (turn["thread"], turn["token"]),
            ).fetchmany(2)
        return int(rows[0][1]), int(rows[1][0])

    def late_reports(self) -> int:
        """Turns that reported their end after their claim was gone: what they still wrote was refused."""
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            row = connection.execute("SELECT count(*) FROM chatlock_turns WHERE late_ended_at IS NOT NULL").fetchone()
        return int(row[0]) if row else 0


def submit_all(url: str, arrivals: list[Arrival], seconds: float) -> None:
    """Stores every message at its moment, all of it squeezed into `seconds`; the workers answer."""
    last = max(arrival.at_s for arrival in arrivals) or 1
    start = time.monotonic()
    with Chatlock(url, tenant="demo", poller=False) as chat:
        for arrival in arrivals:
            time.sleep(max(0.0, start + arrival.at_s / last * seconds - time.monotonic()))
            thread = f"{arrival.log}/{arrival.person}"
            chat.submit(thread, {"chars": arrival.chars}, message_id=arrival.message_id, wait_ms=0)


def kill_one(stage: Stage, messages: int) -> float:
    """SIGKILLs the first worker in a turn once a third of the messages are answered; the other one takes over, and then
    a new one comes.  Seconds until the thread's next turn began.
    """
    until("answers", lambda: len(stage.answered()) >= messages / 3, 120)
    victim = stage.workers[0]
    turn = until("a turn of the first worker", lambda: stage.running(victim), 60)
    kill_whole(victim)
    killed_at, killed_ms = time.monotonic(), time.time() * 1000
    console.print(f"  killed a worker in the middle of turn {turn['token']} of {turn['thread']}")
    until("the killed turn's messages", lambda: stage.later_turn(turn), 60)
    recovered_s = time.monotonic() - killed_at
    stage.workers[0] = stage.fleet.start("worker")
    freed_ms, claimed_ms = stage.freed_and_claimed(turn)
    console.print(
        f"  its thread was freed after {(freed_ms - killed_ms) / 1000:.1f} s, "
        f"claimed again after {(claimed_ms - killed_ms) / 1000:.1f} s"
    )
    return recovered_s


def stop_one(stage: Stage) -> None:
    """SIGSTOPs the second worker in the middle of a turn until a later turn has begun, then lets it go on."""
    victim = stage.workers[1]
    turn = until("a turn of the second worker", lambda: stage.running(victim), 60)
    members = whole(victim)
    send(members, signal.SIGSTOP)
    console.print(f"  stopped a worker in the middle of turn {turn['token']} of {turn['thread']}")
    try:
        until("the stopped turn's messages", lambda: stage.later_turn(turn), 60)
    finally:
        send(members, signal.SIGCONT)
    console.print("  resumed it; its turn's finish must be refused")
    until("the late report", stage.late_reports, 30)


def play(stage: Stage, arrivals: list[Arrival], seconds: float) -> float:
    """Submits, breaks, waits for every message to be answered; seconds that recovery took."""
    submitter = threading.Thread(target=submit_all, args=(stage.url, arrivals, seconds), daemon=True)
    submitter.start()
    recovered_s = kill_one(stage, len(arrivals))
    stop_one(stage)
    submitter.join()
    ids = {arrival.message_id for arrival in arrivals}
    shown = 0

    def all_sent() -> bool:
        nonlocal shown
        done = stage.answered()
        if len(done) * 10 // len(ids) > shown:
            shown = len(done) * 10 // len(ids)
            console.print(f"  {len(done)} of {len(ids)} messages answered")
        return done >= ids

    try:
        until("an answer to every message", all_sent, 240)
    except RuntimeError as error:
        console.print(f"  {error}")
    return recovered_s


def judge(stage: Stage, arrivals: list[Arrival], recovered_s: float) -> int:
    """The last line, from the agent's own log and the late reports; 0 if it is as it must be."""
    times = Counter(i for line in stage.sent() for i in line["ids"])
    lost = len({arrival.message_id for arrival in arrivals} - times.keys())
    twice = sum(count > 1 for count in times.values())
    refused = stage.late_reports()
    with Chatlock(stage.url, tenant="demo", poller=False) as chat:
        sound = chat.verify().ok
    if not sound:
        console.print("  verify found a breach")
    print(
        f"recovered in {recovered_s:.1f} s; ledger: {len(arrivals)} messages, {len(times)} answered in "
        f"{len(stage.sent())} turns, {lost} lost, {twice} answered twice, {refused} stale writes refused",
        flush=True,
    )
    return 0 if sound and not lost and not twice and refused >= 1 and recovered_s <= RECOVERED_S_MAX else 1


def main() -> int:
    """Starts everything, plays, judges, ends everything."""
    parser = argparse.ArgumentParser(prog="python -m examples.workers", description=__doc__.splitlines()[2])
    parser.add_argument("--messages", type=int, default=90)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the arrivals take")
    parser.add_argument("--think", type=float, default=0.3, help="seconds that the agent takes")
    args = parser.parse_args()
    arrivals = sorted(source.replayed(per_log=max(1, args.messages // 9)), key=lambda arrival: arrival.at_s)
    with (
        tempfile.TemporaryDirectory(prefix="chatlock-workers-") as folder,
        running_postgres() as url,
        running_valkey() as redis_url,
    ):
        return run(url, redis_url, folder, arrivals, args)


def run(url: str, redis_url: str, folder: str, arrivals: list[Arrival], args: argparse.Namespace) -> int:
    """The demo on servers that run."""
    with Chatlock(url, tenant="demo", poller=False) as chat:
        chat.setup()
    environment = {
        "CHATLOCK_URL": url,
        "CHATLOCK_REDIS_URL": redis_url,
        "CHATLOCK_DISPATCH": "rq",
        "CHATLOCK_CHAT": "examples.workers.app:chat",
        "CHATLOCK_PORT": "0",
        "DEMO_LOGS": folder,
        "DEMO_THINK_S": str(args.think),
        "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])),
    }
    fleet = Fleet(environment, Path(folder))
    try:
        fleet.start("poller")
        stage = Stage(url, Path(folder), fleet, [fleet.start("worker") for _ in range(2)])
        console.print(f"PostgreSQL, Valkey, a poller and 2 workers run; {len(arrivals)} messages arrive")
        recovered_s = play(stage, arrivals, args.seconds)
        return judge(stage, arrivals, recovered_s)
    except RuntimeError as error:
        for log in sorted(Path(folder).glob("*.log")):
            console.print(f"{log.name}: {log.read_text()[-1500:]}", markup=False)
        console.print(f"failed: {error}", markup=False)
        return 1
    finally:
        fleet.stop()


if __name__ == "__main__":
    sys.exit(main())
