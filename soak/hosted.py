"""The processes that operators start: `chatlock poller`, handing turns out either way, and `chatlock worker`."""

from __future__ import annotations

import logging
import os
import signal

from chatlock import Chatlock, rq_jobs
from chatlock.service import Service
from chatlock.settings import Settings
from soak.agent import Agent
from soak.life import LIMITS, Birth, Life, die_with_parent
from soak.weather import STOP

chat: Chatlock | None = None
"""What CHATLOCK_CHAT names: the client of this process."""
DISPATCH_LEASE_MS = 2_000
DRAIN_MS = 500


def run_service(birth: Birth) -> None:
    """One life of a poller service."""
    life = _hosting(birth)
    os.environ["CHATLOCK_DISPATCH"] = life.random.choice(["inline", "rq", "rq"]) if life.ground.redis_url else "inline"
    service = Service(Settings())
    life.breaks.attach(service.executor)
    service.run()


def run_rq(birth: Birth) -> None:
    """One life of an RQ worker, which forks for each job."""
    life = _hosting(birth)

    def begin_job() -> None:
        die_with_parent()
        life.random.seed(f"{life.name}-{os.getpid()}")

    def point(name: str) -> None:
        """The process that runs a job is killed alone, and stands still with its worker."""
        act = life.slot.take(name)
        if act and life.weather["storm"]:
            if act == STOP:
                os.kill(os.getppid(), signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP if act == STOP else signal.SIGKILL)

    life.point = life.chat._executor.points = point  # type: ignore[method-assign]
    os.register_at_fork(after_in_child=begin_job)
    logging.getLogger("rq").addHandler(logging.NullHandler())
    rq_jobs.work(Settings())


def _hosting(birth: Birth) -> Life:
    """A life whose client, with the agent's handler, is the one that this process serves."""
    global chat
    life = Life(birth, polls=False)
    chat = life.chat
    chat.handler()(Agent(life))
    life.watch_log()
    values = {
        "URL": life.ground.url,
        "CHAT": f"{__name__}:chat",
        "SWEEP_MS": LIMITS.sweep_ms,
        "BEAT_MS": LIMITS.beat_ms,
        "LEASE_MS": LIMITS.lease_ms,
        "DISPATCH_LEASE_MS": DISPATCH_LEASE_MS,
        "DRAIN_MS": DRAIN_MS,
        "PORT": 0,
    }
    if life.ground.redis_url:
        values["REDIS_URL"] = life.ground.redis_url
    os.environ.update({f"CHATLOCK_{name}": str(value) for name, value in values.items()})
    return life
