"""The poller as a service: two loops (sweep, dispatch), woken early by the wake channel, and what watches them."""

from __future__ import annotations

import logging
import os
import threading
import time

from chatlock import migrations
from chatlock.console import Console
from chatlock.errors import ChatlockError, InvalidInput
from chatlock.executor import Executor
from chatlock.hooks import Hooks
from chatlock.hosting import Host, load_chat_of
from chatlock.protocol import Limits
from chatlock.service.dispatch import Dispatcher, Inline, Remote, Sender
from chatlock.service.health import HealthServer, Page
from chatlock.service.http import HttpSender
from chatlock.service.loop import Loop
from chatlock.service.metrics import metrics_of
from chatlock.service.systemd import notify
from chatlock.service.ui import View
from chatlock.settings import Settings
from chatlock.store import owner_name
from chatlock.sweep import Sweep
from chatlock.termination import Termination
from chatlock.urls import checked_url, existing
from chatlock.wake.channel import Channel
from chatlock.wake.postgres import PostgresWake
from chatlock.wake.redis import RedisWake
from chatlock.window import Windows

log = logging.getLogger("chatlock")

MAINTAIN_EVERY_S = 60.0
LIVE_INTERVALS = 3
# the executor's attempts to reach a database that is away take so long: that is no reason to start the service anew
LIVE_LEAST_S = 15.0
HURRY_S = 3.0


class Service:
    """Frees what is stale and hands out what is due, until SIGTERM.  Any number of them, on any machines, share the
    work: every claim, reclaim and dispatch lease is one conditional write.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        url = settings.url.get_secret_value()
        limits = Limits(beat_ms=settings.beat_ms, lease_ms=settings.lease_ms, sweep_ms=settings.sweep_ms)
        self.executor = Executor(existing(checked_url(url)), pool_size=settings.pool_size, pooler=settings.pooler)
        windows = Windows(self.executor, limits, owner_name(), heartbeat=True)
        self._hooks = Hooks()
        self.sweep = Sweep(self.executor, limits, windows, self._hooks, tenant_turns_max=settings.tenant_turns_max)
        self.sweeping = Loop("sweep", settings.sweep_ms, self._sweep_once)
        self.dispatching = Loop("dispatch", settings.sweep_ms, self._dispatch_once)
        self.metrics = metrics_of(self.executor, lambda: self._swept_at)
        if self.metrics is not None:
            self._hooks.subscribe(self.metrics.counts)
        self.dispatcher = self._dispatcher()
        self.wake = wake_of(settings, url)
        pages = {"/livez": self.livez, "/readyz": self.readyz, "/metrics": self._metrics_page}
        token = settings.ui_token
        view = View(Console(self.executor, limits), token.get_secret_value()).answer if token is not None else None
        try:
            self.health = HealthServer(settings.host, settings.port, pages, view)
        except OSError as error:
            where, why = f"{settings.host}:{settings.port}", error.strerror
            raise InvalidInput("bad_address", f"cannot listen on {where}: {why}; set another CHATLOCK_PORT") from None
        self._observe_at = self._maintain_at = self._swept_at = 0.0
        self._stopping, self._told_ready = False, False
        self._ended = threading.Event()

    def _dispatcher(self) -> Dispatcher:
        settings = self._settings
        sender: Sender
        if settings.dispatch == "inline":
            host = Host(load_chat_of(settings.chat or "", settings.url.get_secret_value()))
            if self.metrics is not None:
                host.client.subscribe(self.metrics.counts)
            return Inline(host, settings.turns_max, settings.tenant_turns_max)
        if settings.dispatch == "rq":
            from chatlock.rq_jobs import RqSender

            sender = RqSender(settings)
        else:
            sender = HttpSender(settings)
        return Remote(self.executor, self.sweep, sender, settings.dispatch_lease_ms)

    # -- the life of the service -------------------------------------------------------------------------------------
    def run(self) -> None:
        """Serves until SIGTERM or SIGINT, in the main thread; a second one ends the drain at once."""
        with Termination(self.drain, self.hurry):
            self.start()
            self._ended.wait()

    def hurry(self) -> None:
        """Hands back at once what runs here, and ends even if the database does not answer: then by the lease."""
        self.dispatcher.hurry()
        at_last = threading.Timer(HURRY_S, os._exit, (1,))
        at_last.daemon = True
        at_last.start()

    def start(self) -> None:
        """Begins to serve."""
        self.health.start()
        self.dispatcher.open(self.dispatching.nudge)
        if self.wake is not None:
            self.wake.open(lambda name: self.dispatching.nudge())
        self.sweeping.start()
        self.dispatching.start()
        fields = {"dispatch": self._settings.dispatch, "address": f"http://{self._settings.host}:{self.health.port}"}
        log.info("poller.started", extra=fields)

    def drain(self) -> None:
        """Hands out nothing more; turns that run here get drain_ms, the rest is released uncharged."""
        log.info("poller.draining")
        self._stopping = True
        notify("STOPPING=1")
        self.dispatching.stop()
        if self.wake is not None:
            self.wake.close()
        self.dispatcher.close(self._settings.drain_ms)
        self.sweeping.stop()
        self.health.close()
        self.executor.close()
        log.info("poller.ended")
        self._ended.set()

    # -- the passes --------------------------------------------------------------------------------------------------
    def _sweep_once(self) -> bool:
        try:
            self.sweep.reclaim_stale()
            if time.monotonic() >= self._observe_at:
                self.sweep.observe_windows()
                self._observe_at = time.monotonic() + MAINTAIN_EVERY_S
            self._swept_at = time.time()
            if not self._told_ready:
                notify("READY=1")
                self._told_ready = True
        finally:
            notify("WATCHDOG=1")
        return False

    def _dispatch_once(self) -> bool:
        if time.monotonic() >= self._maintain_at:
            self._maintain_at = time.monotonic() + MAINTAIN_EVERY_S
            self.dispatcher.maintain()
        return self.dispatcher.dispatch_due()

    # -- what is asked from outside ----------------------------------------------------------------------------------
    def livez(self) -> Page:
        """Whether the sweeps go on.  The database is not asked: an outage must not restart every poller."""
        age = time.monotonic() - self.sweeping.passed_at
        limit = max(LIVE_LEAST_S, LIVE_INTERVALS * self._settings.sweep_ms / 1000)
        text = f"last sweep {age:.1f} s ago, limit {limit:g} s\n".encode()
        return Page(200 if age < limit else 503, text)

    def readyz(self) -> Page:
        """Whether the database answers and has the schema."""
        if self._stopping:
            return Page(503, b"draining\n")
        try:
            self.executor.read("ready", migrations.check)
        except ChatlockError as error:
            return Page(503, f"{error}\n".encode())
        return Page(200, b"ready\n")

    def _metrics_page(self) -> Page:
        if self.metrics is None:
            return Page(501, b"metrics need prometheus-client: install chatlock with its extra 'metrics'\n")
        return Page(200, self.metrics.text(), self.metrics.content_type)


def wake_of(settings: Settings, url: str) -> Channel | None:
    """The channel that shortens the wait for the next pass; None: polling alone."""
    redis_url = settings.redis_url
    if redis_url is not None and settings.wake in ("auto", "redis"):
        return RedisWake(redis_url.get_secret_value())
    return PostgresWake(url) if settings.wake == "postgres" else None
