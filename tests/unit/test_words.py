"""One word per concept: the package, the command line and the docs use no second name."""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from typing import TYPE_CHECKING

import pytest

from tests.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A part of an identifier in code, and the word that we have for it.
IDENTIFIERS = {
    "ttl": "lease or window",
    "keepalive": "heartbeat",
    "renew": "heartbeat",
    "renewal": "heartbeat",
    "steal": "reclaim",
    "stolen": "reclaim",
    "reap": "reclaim",
    "reaper": "sweep",
    "rescue": "reclaim",
    "dlq": "dead",
    "ack": "finish",
    "nack": "fail",
    "unlock": "release",
    "unpark": "resume",
    "janitor": "sweep",
    "visibility": "lease",
}
# A phrase anywhere: docs, docstrings, comments, messages, help texts.
PHRASES = {
    r"keep-?alives?": "heartbeat",
    r"lease renewals?|renew(s|ed|ing)? (a|the|its) lease": "heartbeat",
    r"steal(s|ing)?|stolen": "reclaim",
    r"reap(s|ed|ers?|ing)?": "reclaim or sweep",
    r"dead[- ]letter queues?|dlqs?|failed queue": "dead",
    r"visibility timeouts?": "lease",
    r"nack(s|ed)?": "fail",
    r"fenc(e|ing) numbers?": "token",
}
# Where the words of another system's interface have to be written.
OTHERS_WORDS = {"chatlock/rq_jobs.py": {"ttl"}, "chatlock/wake/redis.py": {"ttl", "keepalive"}}

PHRASE = re.compile("|".join(rf"(?P<p{i}>\b(?:{p})\b)" for i, p in enumerate(PHRASES)), re.I)


def second_names(root: Path) -> list[str]:
    """Every second name under `root`, with its place and the word that we have for it."""
    found = []
    for path in _files(root):
        name = str(path.relative_to(root))
        text = path.read_text()
        for line, word, ours in [*_in_code(path, text), *_in_text(text)]:
            if word.lower() not in OTHERS_WORDS.get(name, ()):
                found.append(f"{name}:{line} says {word}: our word is {ours}")
    return found


def _files(root: Path) -> Iterator[Path]:
    for package in ("chatlock", "poller"):
        yield from sorted((root / package).rglob("*.py"))
    yield from sorted((root / "docs").rglob("*.md"))
    yield from sorted((root / "docs").rglob("*.sql"))
    yield from sorted(root.glob("README.md"))


def _in_code(path: Path, text: str) -> Iterator[tuple[int, str, str]]:
    if path.suffix != ".py":
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", token.string):
                if part.lower() in IDENTIFIERS:
                    yield token.start[0], part, IDENTIFIERS[part.lower()]


def _in_text(text: str) -> Iterator[tuple[int, str, str]]:
    ours = list(PHRASES.values())
    for number, line in enumerate(text.splitlines(), 1):
        for match in PHRASE.finditer(line):
            assert match.lastgroup
            yield number, match.group(), ours[int(match.lastgroup[1:])]


def test_no_second_name_is_used() -> None:
    found = second_names(ROOT)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "text", "word"),
    [
        ("chatlock/turn.py", "lock_ttl_ms = 5", "ttl"),
        ("chatlock/turn.py", "class LeaseReaper: ...", "Reaper"),
        ("chatlock/turn.py", "def ack(): ...", "ack"),
        ("chatlock/turn.py", "# we steal the claim", "steal"),
        ("chatlock/cli/main.py", 'HELP = "list the dead letter queue"', "dead letter queue"),
        ("chatlock/rq_jobs.py", "renew = 5", "renew"),
        ("poller/__main__.py", "dlq = []", "dlq"),
        ("docs/guide.md", "The keep-alive extends it.", "keep-alive"),
        ("docs/sql/claim.sql", "-- renews the lease", "renews the lease"),
        ("README.md", "A visibility timeout.", "visibility timeout"),
    ],
)
def test_second_name_is_reported(file: str, text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    found = second_names(tmp_path)
    assert found
    assert any(f" says {word}: our word is" in line for line in found)


def test_words_of_others_and_longer_words_are_not_reported(tmp_path: Path) -> None:
    for file, text in {
        "chatlock/rq_jobs.py": "queue.enqueue(job, result_ttl=60)",
        "chatlock/turn.py": "throttle = settings = background = True  # package, little",
    }.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert second_names(tmp_path) == []
