"""Where the run of a turn begins: anew, in the middle of an earlier turn's run, or at the checkpoint before that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from chatlock import AsyncTurn, Message, Turn
from chatlock.middleware import framework, qualified

Command: Any = framework("langgraph.types", "langgraph").Command

Config: TypeAlias = dict[str, Any]
ToInput: TypeAlias = Callable[[list[Message]], Any]

RUN = ("input", "loop")
"""The sources of a run's checkpoints; a turn may also have edited the state before it ran the graph."""


@dataclass(frozen=True)
class Start:
    """input None: resumed.  upto: the seq of its last message.  anew: all the checkpoints are of a run to forget."""

    input: Any
    config: Config
    upto: int
    anew: bool = False


def config_of(turn: Turn | AsyncTurn, config: Config | None) -> Config:
    """The run's config: the user's own, with the turn."""
    held = {
        "thread_id": qualified(turn.key),
        "chatlock_upto": turn.messages[-1].seq,
        **(config or {}).get("configurable", {}),
        "chatlock_turn": turn,
        "chatlock_token": turn.token,
        "chatlock_question": turn.step_key("question:1"),
        **run_of(turn),
    }
    return {**(config or {}), "configurable": held}


def run_of(turn: Turn | AsyncTurn) -> dict[str, str]:
    """The same for every turn over the same oldest message."""
    return {"chatlock_run": turn.step_key("langgraph")}


def input_of(turn: Turn | AsyncTurn, snapshot: Any, said: Any) -> Any:
    """The input of a graph that may wait for a decision.

    said where the turn has no decision; the decision, to resume with, where it is that of the question which this state
    asks; else None: the graph has gone on since, and asks what it asks now.

    Args:
        turn: The handler's turn.
        snapshot: The state as graph.get_state returns it, before the run.
        said: The input that other messages make.
    """
    decisions = {message.answers: message.payload for message in turn.messages if message.answers}
    if not decisions:
        return said
    asked = (snapshot.metadata or {}).get("chatlock_question")
    return Command(resume=decisions[asked]) if asked in decisions else None


def head_of(config: Config) -> Config:
    """Where the thread stands, at whichever checkpoint the run was told to begin."""
    named = {name: value for name, value in config["configurable"].items() if name != "checkpoint_id"}
    return {**config, "configurable": named}


def start_of(turn: Turn | AsyncTurn, to_input: ToInput, config: Config, stored: list[Any]) -> Start:
    """stored: what earlier turns over the same oldest message have stored, the latest first."""
    messages, last = turn.messages, turn.messages[-1].seq
    run = [snapshot for snapshot in stored if snapshot.metadata["source"] in RUN]
    put_in = run[0].metadata["chatlock_upto"] if run else 0
    if run and put_in <= last:
        resumed = _with(head_of(config), chatlock_upto=put_in)
        return Start(None, resumed, max(m.seq for m in messages if m.seq <= put_in))
    before = run[-1].parent_config if run else None
    if before is not None:
        config = _with(config, checkpoint_id=before["configurable"]["checkpoint_id"])
    return Start(to_input(messages), config, last, anew=bool(run) and before is None)


def _with(config: Config, **configurable: Any) -> Config:
    return {**config, "configurable": {**config["configurable"], **configurable}}
