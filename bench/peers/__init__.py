"""make bench-peers: chatlock beside the queues and locks that Python developers use per key, in one run.

Each peer is a module with setup(at), Producer(at) and work(at): make its tables, send a message, handle messages until
killed.  The handler is the same for all, and all is judged from what it logs.  Needs what requirements.txt lists.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

AT = "CHATLOCK_BENCH_AT"
SLOTS = 8
"""Messages that one worker process handles at once, where the peer can."""


@dataclass(frozen=True)
class At:
    """Where a peer runs, told to its workers in the environment."""

    url: str
    """The PostgreSQL database, as libpq reads it."""
    redis: str
    log: str
    threads: tuple[str, ...]
    """Every thread of the run: pgqueuer must know them."""
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def here(cls) -> Self:
        """As told to this process."""
        told = json.loads(os.environ[AT])
        return cls(**told | {"threads": tuple(told["threads"])})

    def environment(self) -> dict[str, str]:
        return {AT: json.dumps(asdict(self))}


@dataclass(frozen=True)
class Peer:
    """One way to keep the messages of a thread apart."""

    name: str
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    in_place: bool = False
    """Whether messages arrive at the worker processes themselves, which then say when each was accepted."""
    batches: bool = False
    """Whether one turn takes several messages: its hand-offs are then not between messages."""
    crash: bool = True
    """Whether its crash is a case of its own."""


CHATLOCK = "chatlock"
PEERS = (
    Peer(CHATLOCK, "chatlock_turns", batches=True),
    Peer("chatlock, one message a turn", "chatlock_turns", {"batch_max": 1}, crash=False),
    Peer("chatlock, where it arrives", "chatlock_turns", {"in_place": True}, in_place=True, batches=True),
    Peer("procrastinate, lock=", "procrastinate_lock", {"concurrency": 1}),
    Peer("procrastinate, lock=, 8 at once", "procrastinate_lock", {"concurrency": SLOTS}, crash=False),
    Peer("pgqueuer, an entrypoint a thread", "pgqueuer_entrypoints"),
    Peer("SAQ + Redis lock", "saq_lock"),
    Peer("RQ, rate limit", "rq_queue", {"lock": False}),
    Peer("RQ + Redis lock", "rq_queue", {"lock": True}),
    Peer("pg_advisory_lock", "advisory_lock", in_place=True),
)
