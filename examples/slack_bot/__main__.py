"""python -m examples.slack_bot

A Bolt app with one line added.  Slack is played offline, by signed requests: Ann double texts in a thread, and Slack
delivers her first message three times, once as the other kind of event.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from slack_bolt.async_app import AsyncApp, AsyncBoltRequest
from slack_bolt.authorization import AuthorizeResult
from slack_sdk.signature import SignatureVerifier

from chatlock import AsyncChatlock, Delivery
from chatlock.middleware.slack import Place, inbox
from examples.agents_ledger import Clerk, Said, exit_code_of, ledger_of

SECRET = "signing-secret"
THREAD = Place("T1", "C1", "1.1").thread
MESSAGES = [
    Said(THREAD, "1.1", "A table for two"),
    Said(THREAD, "1.2", "sorry, three"),
    Said(THREAD, "1.3", "at eight"),
]


async def authorize(enterprise_id: str | None, team_id: str) -> AuthorizeResult:
    """The bot's own account in the workspace."""
    return AuthorizeResult(
        enterprise_id=enterprise_id, team_id=team_id, bot_token="xoxb-..", bot_id="B1", bot_user_id="UBOT"
    )


async def deliver(app: AsyncApp, said: Said, kind: str) -> None:
    """One of Slack's deliveries."""
    event: dict[str, Any] = {"type": kind, "channel": "C1", "user": "UANN", "text": said.text, "ts": said.message_id}
    body = json.dumps({"type": "event_callback", "team_id": "T1", "event": {**event, "thread_ts": "1.1"}})
    now = str(int(time.time()))
    signature = str(SignatureVerifier(SECRET).generate_signature(timestamp=now, body=body))
    headers = {"X-Slack-Signature": signature, "X-Slack-Request-Timestamp": now, "Content-Type": "application/json"}
    answer = await app.async_dispatch(AsyncBoltRequest(body=body, headers=headers))
    print(f"{kind} {said.message_id} {said.text!r}: {answer.status}")


async def serve(folder: Path) -> bool:
    """Everything arrives; then the ledger is made."""
    async with AsyncChatlock(f"sqlite:///{folder / 'chat.db'}", tenant="acme") as chat:
        await chat.setup()
        app, agent = AsyncApp(signing_secret=SECRET, authorize=authorize), Clerk(len(MESSAGES))
        chat.handler()(agent.answer)

        @chat.deliver()
        async def post(delivery: Delivery) -> None:
            """What app.client.chat_postMessage does with a token of Slack's."""
            print(f"turn {delivery.token}: posts {delivery.reply!r} to {Place.of(delivery).target}")
            agent.has_sent(delivery)

        app.use(inbox(chat, accepts=lambda event: True))
        for said in MESSAGES:
            await deliver(app, said, "app_mention")
            if said is MESSAGES[0]:
                await deliver(app, said, "message")
                await deliver(app, said, "app_mention")
        await asyncio.wait_for(agent.all_sent.wait(), 60)
        return await ledger_of(chat, MESSAGES, {THREAD: agent.remembers})


def main() -> int:
    """0 if the ledger is clean."""
    return exit_code_of(serve)


if __name__ == "__main__":
    sys.exit(main())
