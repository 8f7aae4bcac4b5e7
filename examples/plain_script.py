"""One file, no web server: people who double text, a sync handler, and a second call for the same message.

python -m examples.plain_script
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from chatlock import AlreadyAnswered, Answered, Chatlock, Turn

THINK_S = 0.5
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

        def say(message_id: str, stored: threading.Event) -> None:
            text = MESSAGES[message_id]
            match chat.submit("table-7", text, message_id=message_id, on_stored=lambda outcome: stored.set()):
                case Answered(reply=reply):
                    print(f"{message_id} sends the reply: {reply}")
                case AlreadyAnswered(turn=turn):
                    print(f"{message_id} was answered by turn {turn}: nothing to send")
                case outcome:
                    print(f"{message_id}: {outcome}")

        people = []
        for message_id in MESSAGES:
            stored = threading.Event()
            people.append(threading.Thread(target=say, args=(message_id, stored)))
            people[-1].start()
            stored.wait()
        for person in people:
            person.join()
        say("m1", threading.Event())  # a retry


if __name__ == "__main__":
    main()
