"""A database as an operator meets it, on a stopped clock: threads in every state, the same on both databases."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Engine, event

import chatlock.cli.context
import chatlock.client_base
from chatlock.cli import main
from chatlock.executor import Executor
from chatlock.inputs import Key, payload_json
from chatlock.ops import claim, fetch, finish, intents, operate, unanswered
from chatlock.ops.audit import Act
from chatlock.ops.base import Claim
from chatlock.ops.heartbeat import Beat, heartbeat
from chatlock.ops.load import read_clock
from chatlock.ops.submit import Submission, submit
from chatlock.protocol import Limits
from chatlock.testing.clock import DatabaseClock
from tests.conformance import rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Database

START_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z
LIMITS = Limits()
MINUTE_MS = 60_000
DAY_MS = 86_400_000


class Scene:
    """Acts on the database as chatlock's processes do, through the ops, each under a name of its own."""

    def __init__(self, database: Database, patch: pytest.MonkeyPatch) -> None:
        self.database = database
        self.clock = DatabaseClock.install(database.url)
        self.clock.set(START_MS)
        clock, compiled = self.clock, dict[Any, Any]()

        class Clocked(Executor):
            def _make(self, pool_size: int) -> Engine:
                engine = super()._make(pool_size)
                # a statement is compiled once per scene instead of once per command, which saves most of the time
                engine.update_execution_options(compiled_cache=compiled)
                if database.kind == "sqlite":  # PostgreSQL's own connections tell the time that is set
                    event.listen(engine, "connect", clock._teach)
                return engine

        for module in (chatlock.cli.context, chatlock.client_base):
            patch.setattr(module, "Executor", Clocked)
        self.executor = Clocked(database.url, pool_size=2, pooler=None)
        assert self.executor.read("clock", read_clock) == START_MS
        self._meta = rows.table(database, "chatlock_meta")

    # -- what processes do -------------------------------------------------------------------------------------------
    def send(self, thread: str, *ids: str, tenant: str = "acme", agent: str = "default", payload: Any = "hello") -> Key:
        """Stores messages; nobody claims."""
        key = Key(tenant, thread)
        text, text_hash = payload_json(payload)
        for message_id in ids:
            message = Submission(key, message_id, text, text_hash, agent)
            self._do(lambda c, m=message: submit(c, m, None, LIMITS))
        return key

    def claim(self, key: Key, owner: str, *, window_ms: int = 600_000, lease_ms: int = 10_000) -> Claim:
        """A worker claims the thread and fetches."""
        request = claim.Request(f"claim-of-{owner}", owner, lease_ms, window_ms, LIMITS)
        granted = self._do(lambda c: claim.claim_due(c, key, request))
        assert granted
        if not granted.messages:
            assert self._do(lambda c: fetch.fetch(c, granted.claim, granted.claim.from_seq, LIMITS))
        return granted.claim

    def beat(self, held: Claim) -> None:
        assert self.executor.read("beat", lambda c: heartbeat(c, held)).beat is Beat.EXTENDED

    def answer(
        self,
        held: Claim,
        upto: int,
        reply: Any = "hi",
        *,
        deliver: bool = False,
        question: finish.Question | None = None,
    ) -> None:
        text, _ = payload_json(reply)
        effect = intents.Effect("reply", "step-of-reply", text) if deliver else None
        what = finish.Finish(held, upto, upto - held.from_seq, text, effect, question)
        assert self._do(lambda c: finish.finish(c, what))

    def fail(self, held: Claim, error: str, *, attempts_max: int = LIMITS.attempts_max) -> None:
        limits = Limits(attempts_max=attempts_max)
        assert self._do(lambda c: unanswered.fail(c, held, held=1, error=error, limits=limits, jitter=1.0))

    def park(self, key: Key, reason: str) -> None:
        assert self._do(lambda c: operate.park(c, key, None, Act("park", "olga", reason))).done

    def delete(self, key: Key) -> None:
        assert self._do(lambda c: operate.delete(c, key, Act("delete", "olga", "asked to"))).done

    def swept(self, ago_ms: int = 10_000) -> None:
        """A poller has left its mark."""
        self.execute(f"UPDATE chatlock_meta SET value = {self.clock.now_ms - ago_ms} WHERE name = 'windows_through'")

    def execute(self, statement: str) -> None:
        rows.execute(self.database, statement)

    def _do(self, op: Callable[[Any], Any]) -> Any:
        return self.executor.transaction("scene", op)

    # -- what the operator does --------------------------------------------------------------------------------------
    def run(self, *arguments: str, tenant: str | None = "acme") -> Result:
        """One command, as that tenant's operator."""
        environment = {"CHATLOCK_URL": self.database.url, "CHATLOCK_TENANT": tenant}
        return CliRunner(env=environment).invoke(main, arguments)

    def json(self, *arguments: str, code: int = 0, tenant: str | None = "acme") -> list[Any]:
        """A command's objects."""
        result = self.run(*arguments, "--json", tenant=tenant)
        assert result.exit_code == code, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    def reset(self) -> None:
        """Every table is as a new database has it, and the clock back at the start."""
        script = [f"DELETE FROM {name}" for name in rows.TABLES]
        script += [f"INSERT INTO chatlock_meta(name, value) VALUES ('{m['name']}', {m['value']})" for m in self._meta]
        if self.database.kind == "sqlite":
            rows.plain(self.database).executescript(";".join(["BEGIN IMMEDIATE", *script, "COMMIT"]))
        else:
            self.execute(";".join(script))
        self.clock.set(START_MS)

    def close(self) -> None:
        self.executor.close()


def populate(scene: Scene) -> None:
    """Threads in every state that an operator asks about."""
    clock = scene.clock
    clock.set(START_MS - 30 * MINUTE_MS)
    answered = scene.claim(scene.send("answered", "m1", "m2"), "worker-1")
    clock.advance(8_000)
    scene.answer(answered, upto=2, reply={"text": "hi \x1b[2J"}, deliver=True)
    scene.fail(scene.claim(scene.send("poison", "p1", payload={"text": "boom"}), "worker-1"), "ValueError")
    clock.advance(60_000)
    scene.fail(scene.claim(Key("acme", "poison"), "worker-2"), "KeyError", attempts_max=2)
    scene.delete(scene.send("deleted", "m1"))
    scene.park(scene.send("parked", "m1", "m2", payload="[red]\u202eevil"), "looks [bold]wrong\x1b[0m")
    asking = scene.claim(scene.send("awaiting", "m0"), "worker-1")
    scene.answer(asking, upto=1, reply="go on?", question=finish.Question("question-1", "hold"))
    scene.send("awaiting", "m1")
    scene.send("untaken", "m1", agent="night")
    scene.send("answered", "m1", tenant="beta")
    clock.set(START_MS - 400_000)
    hung = scene.claim(scene.send("hung", "m1"), "worker-1")
    clock.set(START_MS - 20_000)
    silent = scene.claim(scene.send("silent", "m1"), "worker-2")
    scene.claim(scene.send("stale", "m1"), "worker-3")
    clock.set(START_MS - 7_000)
    scene.beat(silent)
    scene.claim(scene.send("unbeaten", "m1"), "worker-4", window_ms=600_000, lease_ms=600_000)
    clock.set(START_MS - 5_000)
    alive = scene.claim(scene.send("alive", "m1", "m2"), "worker-1")
    clock.set(START_MS - 2_000)
    for held in (hung, alive):
        scene.beat(held)
    scene.send("alive", "m3")
    clock.set(START_MS)
    delayed = scene.claim(scene.send("delayed", "m1"), "worker-1")
    scene.fail(delayed, "TimeoutError")
    scene.send("due", "m1")
    record_runs(scene)
    scene.swept()


def record_runs(scene: Scene) -> None:
    """Two days of runs of an agent that none of the threads above has, as the sweeper counted them."""
    today = START_MS // DAY_MS
    for day, runs, longest_ms in ((today - 1, 12, 30_000), (today, 3, 45_000)):
        scene.execute(
            "INSERT INTO chatlock_windows(agent, day, longest_ms, runs)"
            f" VALUES ('crawler', {day}, {longest_ms}, {runs})"
        )
