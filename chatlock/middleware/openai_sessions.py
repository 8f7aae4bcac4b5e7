"""Sessions of the OpenAI Agents SDK whose changes are kept back until the turn is finished."""

from __future__ import annotations

from typing import Any

from chatlock import AsyncTurn, InvalidInput
from chatlock.middleware import framework, qualified

agents: Any = framework("agents", "openai-agents")


def kept_by_provider(session: Any) -> bool:
    """Whether the SDK looks for this very type and writes to it in its own way, so that it cannot be wrapped."""
    kept = isinstance(session, agents.OpenAIConversationsSession)
    return kept or agents.is_openai_responses_compaction_aware_session(session)


class TurnSession:
    """A session of the SDK that keeps what a run changes until the turn is finished.

    What a failed, cancelled or stale turn changed is dropped.  With the session of another store the changes are
    written right after the finish: a process that dies just then loses them; in chatlock's own database, by
    stored_session, they are one transaction with it.

    Args:
        turn: The turn whose run it serves.
        session: Where the history is.
    """

    def __init__(self, turn: AsyncTurn, session: Any) -> None:
        if kept_by_provider(session):
            raise InvalidInput("bad_session", f"the SDK treats {type(session).__name__} apart: pass it as it is")
        self.session_id: str = session.session_id
        self.session_settings: Any = getattr(session, "session_settings", None)
        self._ignore_ids_for_matching = getattr(session, "_ignore_ids_for_matching", False)
        self._turn, self._session = turn, session
        self._new: list[Any] = []
        self._popped, self._cleared = 0, False

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """The history with this run's changes.

        Args:
            limit: How many items at most, the last ones; None: as the session's settings say.
        """
        if limit is None:
            limit = getattr(self.session_settings, "limit", None)
        kept = []
        if not self._cleared:
            kept = await self._session.get_items(None if limit is None else limit + self._popped)
        items = [*kept[: len(kept) - self._popped], *self._new]
        return items if limit is None else items[max(0, len(items) - limit) :]

    async def add_items(self, items: list[Any]) -> None:
        """Keeps items for the finish.  Raises ClaimLost, which stops the run.

        Args:
            items: What the run adds to the history.
        """
        self._turn.check()
        self._new.extend(items)

    async def pop_item(self) -> Any:
        """Takes the last item off."""
        self._turn.check()
        if self._new:
            return self._new.pop()
        last = await self.get_items(1)
        self._popped += len(last)
        return last[0] if last else None

    async def clear_session(self) -> None:
        """Takes everything off."""
        self._turn.check()
        self._new.clear()
        self._popped, self._cleared = 0, True

    async def finish(self, reply: Any, upto: int) -> None:
        """Finishes the turn and writes the changes.  Raises ClaimLost: nothing is written.

        Args:
            reply: What the turn is finished with.
            upto: The seq of the last message answered.
        """
        await self._turn.finish(reply, upto=upto)
        await self._write(self._session)

    async def _write(self, session: Any) -> None:
        if self._cleared:
            await session.clear_session()
        for _ in range(self._popped):
            await session.pop_item()
        await session.add_items(self._new)


class _StoredSession(TurnSession):
    def __init__(self, turn: AsyncTurn, engine: Any, options: dict[str, Any]) -> None:
        self._engine, self._options = engine, {"session_id": qualified(turn.key), **options}
        super().__init__(turn, self._on(engine))

    def _on(self, engine: Any) -> Any:
        return framework("agents.extensions.memory", "openai-agents").SQLAlchemySession(engine=engine, **self._options)

    async def finish(self, reply: Any, upto: int) -> None:
        async with self._engine.begin() as conn:
            await self._turn.finish(reply, upto=upto, conn=conn)
            await self._write(self._on(conn))


def stored_session(turn: AsyncTurn, engine: Any, **options: Any) -> TurnSession:
    """A session in chatlock's own database: the history and the end of the turn commit together, or not at all.

    Make its tables in a migration, or once before you serve.

    Args:
        turn: The turn whose run it serves.
        engine: An AsyncEngine of that database.
        options: Those of the SDK's SQLAlchemySession: session_id, by default "<tenant>/<thread>", each quoted;
            sessions_table, ..
    """
    return _StoredSession(turn, engine, options)


async def conversation_session(turn: AsyncTurn, client: Any, name: str = "openai") -> Any:
    """The SDK's session for a conversation that OpenAI keeps: one per thread, made under the claim.

    The turn serializes its runs; what a failed or stale run has sent there stays there.

    Args:
        turn: The turn whose run it serves.
        client: An AsyncOpenAI.
        name: Under which name the thread keeps it; see Turn.session.
    """

    async def create(step_key: str) -> str:
        made = await client.conversations.create(items=[], extra_headers={"Idempotency-Key": step_key})
        return str(made.id)

    return agents.OpenAIConversationsSession(conversation_id=await turn.session(name, create), openai_client=client)
