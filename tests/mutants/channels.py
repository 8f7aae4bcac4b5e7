"""The adapters of chat platforms."""

from __future__ import annotations

from tests.mutants.mutant import SLACK, TELEGRAM, Mutant

CHANNELS = (
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
    Mutant(
        "inbox_confirms_what_may_not_be_stored",
        "middleware/inbox.py",
        "    if isinstance(outcome, Unknown):\n        raise",
        "    if isinstance(outcome, Unknown) and outcome.message_id is None:\n        raise",
        f"{SLACK} -k 'may_not_be_stored and async'",
    ),
    Mutant(
        "inbox_asks_for_ever_for_what_is_too_deep",
        "middleware/inbox.py",
        '"bad_number", "too_deep", "too_large"})',
        '"bad_number", "too_large"})',
        f"{SLACK} -k 'never_can_be_stored and async'",
    ),
    Mutant(
        "inbox_confirms_what_the_app_got_wrong",
        "middleware/inbox.py",
        "    if error.reason not in UNSTORABLE:\n        raise error\n",
        "",
        f"{SLACK} -k 'never_can_be_stored and async'",
    ),
    Mutant(
        "inbox_keeps_the_edit_of_what_is_not_its_own",
        "middleware/inbox.py",
        "return not isinstance(outcome, NotFound)",
        "return True",
        f"{SLACK} -k 'edit_replaces and async'",
    ),
    Mutant(
        "slack_emptied_place_is_an_edit",
        "middleware/slack.py",
        'event["message"].get("subtype") == "tombstone"',
        'event["message"].get("subtype") == "deleted"',
        f"{SLACK} -k 'deletion_cancels and async'",
    ),
    Mutant(
        "slack_deletion_by_a_bot_cancels",
        "middleware/slack.py",
        "    if not _by_person(message):\n        return None\n    return Inbound",
        "    return Inbound",
        f"{SLACK} -k 'deletion_cancels and async'",
    ),
    Mutant(
        "slack_bot_is_answered",
        "middleware/slack.py",
        ' and "bot_id" not in message',
        "",
        f"{SLACK} -k 'not_for_the_agent and async'",
    ),
    Mutant(
        "telegram_direct_messages_are_one_thread",
        "middleware/telegram_updates.py",
        'f":{self.direct_topic}"',
        '""',
        f"{TELEGRAM} -k 'thread_is and telegram'",
    ),
    Mutant(
        "telegram_forwarded_post_is_answered",
        "middleware/telegram_updates.py",
        " and not message.is_automatic_forward",
        "",
        f"{TELEGRAM} -k 'not_for_the_agent and aiogram'",
    ),
    Mutant(
        "telegram_owner_of_the_account_is_answered",
        "middleware/telegram_updates.py",
        "message.from_user.id != message.chat.id:",
        "message.from_user is None:",
        f"{TELEGRAM} -k 'not_for_the_agent and aiogram'",
    ),
    Mutant(
        "telegram_fault_in_accepts_is_raised",
        "middleware/telegram_updates.py",
        'extra={"error": type(error).__name__})\n        return False',
        'extra={"error": type(error).__name__})\n        raise',
        f"{TELEGRAM} -k 'fault_in_accepts and aiogram'",
    ),
    Mutant(
        "telegram_round_is_handled_again",
        "middleware/telegram.py",
        "if item.update_id in self._repeated or await self._take(item):",
        "if await self._take(item):",
        f"{TELEGRAM} -k 'polling_confirms and not aiogram'",
    ),
    Mutant(
        "telegram_what_is_not_stored_is_confirmed",
        "middleware/telegram.py",
        'raise NetworkError("the message could not be stored") from error',
        "return False",
        f"{TELEGRAM} -k 'sends_again and not aiogram'",
    ),
)
