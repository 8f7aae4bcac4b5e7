"""Traces, and the adapters of agent frameworks and channels."""

from __future__ import annotations

from tests.mutants.mutant import (
    AGENTS,
    HOOKS,
    LANGGRAPH_LEFT,
    LANGGRAPH_RUNS,
    LANGGRAPH_SAVER,
    OTEL,
    SLACK,
    TELEGRAM,
    Mutant,
)

ADAPTERS = (
    # -- traces --------------------------------------------------------------------------------------------------
    Mutant("trace_not_stored", "ops/submit.py", '"trace": submission.trace,', '"trace": None,', OTEL),
    Mutant(
        "trace_not_stored_on_locked_path",
        "ops/submit.py",
        "        trace=submission.trace,",
        "        trace=None,",
        HOOKS,
    ),
    Mutant("trace_not_handed_to_the_turn", "ops/fetch.py", "answers, row.trace)", "answers)", OTEL),
    Mutant(
        "trace_ends_with_the_work_horse",
        "middleware/otel.py",
        "                self._flush()",
        "                pass",
        OTEL,
    ),
    # -- adapters of agent frameworks ----------------------------------------------------------------------------
    Mutant(
        "langgraph_write_not_fenced",
        "middleware/langgraph_fences.py",
        "            await turn.fence(conn)\n",
        "",
        f"{LANGGRAPH_SAVER} -k 'late_write_is_refused and sqlite'",
    ),
    Mutant(
        "langgraph_sync_write_not_fenced",
        "middleware/langgraph_fences.py",
        "            turn.fence(conn)\n            yield",
        "            yield",
        f"{LANGGRAPH_SAVER} -k 'late_write_is_refused_in_sync and sqlite'",
    ),
    Mutant(
        "langgraph_late_token_kept_in_memory",
        "middleware/langgraph_fences.py",
        "if turn.token < self._highest.get(turn.key, 0):",
        "if turn.token < 0:",
        f"{LANGGRAPH_SAVER} -k 'late_write_is_refused and memory'",
    ),
    Mutant(
        "langgraph_always_resumes",
        "middleware/langgraph_runs.py",
        "return held[-1] if same else 0",
        "return held[-1]",
        f"{LANGGRAPH_RUNS} -k 'fewer and memory'",
    ),
    Mutant(
        "langgraph_never_resumes",
        "middleware/langgraph_runs.py",
        "return held[-1] if same else 0",
        "return 0",
        f"{LANGGRAPH_RUNS} -k 'is_resumed and memory'",
    ),
    Mutant(
        "langgraph_keeps_what_was_withdrawn",
        "middleware/langgraph_runs.py",
        'UNDONE = ("failed", "gave_up", "released", "reclaimed")',
        'UNDONE = ("failed",)',
        f"{LANGGRAPH_LEFT} -k 'withdrawn and memory'",
    ),
    Mutant(
        "langgraph_token_of_another_thread_judged",
        "middleware/langgraph_runs.py",
        'found.metadata.get("chatlock_thread") == qualified(turn.key)',
        'found.metadata.get("chatlock_thread")',
        f"{LANGGRAPH_LEFT} -k another_thread",
    ),
    Mutant(
        "stopped_run_not_awaited",
        "middleware/stopping.py",
        "    await end()\n    if not",
        "    if not",
        "tests/frameworks/test_stopping.py -k agents-stream",
    ),
    Mutant(
        "agents_history_apart_from_the_finish",
        "middleware/openai_sessions.py",
        "await self._turn.finish(reply, upto=upto, conn=conn)\n            await self._write(self._on(conn))",
        "await self._write(self._on(conn))\n        await self._turn.finish(reply, upto=upto)",
        f"{AGENTS} -k 'items_of_a_stale_turn and sqlite'",
    ),
    Mutant(
        "agents_history_before_the_finish",
        "middleware/openai_sessions.py",
        "await self._turn.finish(reply, upto=upto)\n        await self._write(self._session)",
        "await self._write(self._session)\n        await self._turn.finish(reply, upto=upto)",
        f"{AGENTS} -k another_store",
    ),
    Mutant(
        "agents_loss_does_not_stop_the_run",
        "middleware/stopping.py",
        "            task.cancel()",
        "            pass",
        f"{AGENTS} -k hangs",
    ),
    Mutant(
        "inbox_confirms_what_is_not_stored",
        "middleware/inbox.py",
        "return await Submitting(self._turns, lambda on_stored: submit(on_stored=on_stored)).refused()",
        "return None if self._turns.start(submit()) else None",
        f"{SLACK} -k 'sends_again and async'",
    ),
    Mutant(
        "slack_message_is_another_by_its_delivery",
        "middleware/slack.py",
        'event["ts"], _payload(event))',
        'event["type"] + event["ts"], _payload(event))',
        f"{SLACK} -k 'over_kinds and sync'",
    ),
    Mutant(
        "telegram_chain_of_replies_is_a_topic",
        "middleware/telegram_updates.py",
        "message.message_thread_id if message.is_topic_message else None",
        "message.message_thread_id",
        f"{TELEGRAM} -k thread_is",
    ),
    Mutant(
        "aiogram_error_handler_hears_of_what_was_not_stored",
        "middleware/aiogram.py",
        "raise CancelHandler from error",
        "raise",
        f"{TELEGRAM} -k 'sends_again and aiogram'",
    ),
)
