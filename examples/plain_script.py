"""One file, no web server: people who double text, a sync handler, and a second call for the same message.

python -m examples.plain_script
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from chatlock import AlreadyAnswered, Answered, Chatlock, Turn

THINK_S = 0.3
MESSAGES = {"m1": "A table for two", "m2": "sorry, three", "m3": "at eight"}


def main() -> None:
    """Three messages within one turn's time become two turns."""
    with (
        tempfile.TemporaryDirectory(prefix="chatlock-script-") as folder,
        Chatlock(f"sqlite:///{Path(folder) / 'chat.db'}", tenant="acme") as chat,
    ):
        chat.setup()

        @chat.handler()
        def answer(turn: Turn) -> str:
            time.sleep(THINK_S)  # your agent
            return f"turn {turn.token} read: " + " / ".join(message.payload for message in turn.messages)

        def say(message_id: str, text: str) -> None:
            match chat.submit("table-7", text, message_id=message_id):
                case Answered(reply=reply):
                    print(f"{message_id} sends the reply: {reply}")
                case AlreadyAnswered(turn=turn):
                    print(f"{message_id} was answered by turn {turn}: nothing to send")
                case outcome:
                    print(f"{message_id}: {outcome}")

        people = [threading.Thread(target=say, args=message) for message in MESSAGES.items()]
        for person in people:
            person.start()
            time.sleep(THINK_S / 10)
        for person in people:
            person.join()
        say("m1", MESSAGES["m1"])  # a retry


if __name__ == "__main__":
    main()
