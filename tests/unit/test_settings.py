"""Settings: where they come from, how they must relate, and that --help lists every one."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from pydantic import ValidationError

from chatlock.cli import main
from chatlock.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "s3cret-w0rd"
INLINE = {"url": "sqlite:///chat.db", "chat": "app:chat"}
FIELDS_MAX = 20


def settings(**given: Any) -> Settings:
    """Settings from these values alone."""
    return Settings(_env_file=None, **given)


def run(*arguments: str, **environment: str) -> Result:
    """One command with these settings in the environment."""
    named = {f"CHATLOCK_{name.upper()}": value for name, value in environment.items()}
    return CliRunner(env=named).invoke(main, [*arguments])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No .env of this machine is read; the database file that INLINE names is there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.db").touch()
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in Settings.model_fields:
        monkeypatch.delenv(f"CHATLOCK_{name.upper()}", raising=False)


def test_settings_come_from_the_environment_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text(
        "CHATLOCK_URL=sqlite:///file.db\nCHATLOCK_CHAT=app:chat\nCHATLOCK_SWEEP_MS=200\nOTHER=1\n"
    )
    assert Settings().sweep_ms == 200
    monkeypatch.setenv("CHATLOCK_SWEEP_MS", "300")
    assert Settings().sweep_ms == 300
    assert Settings().url.get_secret_value() == "sqlite:///file.db"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "url"),
        ({"url": "sqlite:///chat.db"}, "chat=module:name"),
        ({**INLINE, "dispatch": "rq"}, "redis_url"),
        ({**INLINE, "dispatch": "http", "http_url": "http://app/"}, "http_secret"),
        ({**INLINE, "dispatch": "http", "http_secret": SECRET}, "http_url"),
        ({**INLINE, "dispatch": "http", "http_url": "file:///etc/passwd", "http_secret": SECRET}, "https://"),
        ({**INLINE, "wake": "redis"}, "redis_url"),
        ({**INLINE, "wake": "postgres", "pooler": "transaction"}, "session"),
        ({**INLINE, "beat_ms": 4000}, "three beats"),
        ({**INLINE, "lease_ms": 8999}, "three beats"),
        ({**INLINE, "dispatch": "cron"}, "dispatch"),
        ({**INLINE, "sweep_ms": 99}, "sweep_ms"),
        ({**INLINE, "dispatch_lease_ms": 600_001}, "dispatch_lease_ms"),
        ({**INLINE, "port": 65_536}, "port"),
        ({**INLINE, "pooler": "session"}, "pooler"),
    ],
)
def test_settings_that_do_not_hold_together_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        settings(**given)


@pytest.mark.parametrize(
    "given",
    [
        INLINE,
        {"url": "sqlite:///chat.db", "dispatch": "rq", "redis_url": "redis://cache/0"},
        {"url": "sqlite:///chat.db", "dispatch": "http", "http_url": "https://app/", "http_secret": SECRET},
        {**INLINE, "beat_ms": 3000, "lease_ms": 9000},
        {**INLINE, "wake": "redis", "redis_url": "redis://cache/0"},
    ],
)
def test_settings_that_hold_together_are_accepted(given: dict[str, Any]) -> None:
    assert settings(**given).url.get_secret_value() == given["url"]


def test_secrets_are_not_shown() -> None:
    given = {**INLINE, "url": f"postgresql://u:{SECRET}@db/app", "redis_url": f"redis://:{SECRET}@cache/0"}
    assert SECRET not in repr(settings(**given, http_secret=SECRET))


@pytest.mark.parametrize("command", ["poller", "worker"])
def test_help_lists_every_setting_with_its_variable_and_default(command: str) -> None:
    assert len(Settings.model_fields) <= FIELDS_MAX
    text = " ".join(run(command, "--help").output.split())
    for name, field in Settings.model_fields.items():
        default = "required" if field.is_required() else f"default: {field.default or 'none'}"
        if field.default == 0:
            default = "default: 0"
        listed = f"CHATLOCK_{name.upper()} {field.description} [{default}]"
        assert listed in text, listed


@pytest.mark.parametrize("command", ["poller", "worker"])
@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({}, "Error: CHATLOCK_URL: Field required"),
        ({"url": f"postgresql://u:{SECRET}@db/app"}, "Error: dispatch=inline runs turns here: set chat=module:name"),
        (
            {**INLINE, "lease_ms": "100", "port": SECRET},
            "Error: CHATLOCK_LEASE_MS: Input should be greater than or equal to 500; CHATLOCK_PORT: Input should be a"
            " valid integer, unable to parse string as an integer",
        ),
    ],
)
def test_wrong_settings_end_the_command_with_one_line(command: str, environment: dict[str, str], line: str) -> None:
    ended = run(command, **environment)
    assert (ended.exit_code, ended.output) == (2, f"{line}\n")


@pytest.mark.parametrize(
    ("command", "environment", "line"),
    [
        ("poller", {**INLINE, "chat": "no.such:chat"}, "Error: chat=no.such:chat: there is no module no"),
        (
            "poller",
            {**INLINE, "url": "mysql://db/app"},
            "Error: chatlock runs on postgresql and sqlite, not on 'mysql'",
        ),
        ("worker", INLINE, "Error: a worker needs CHATLOCK_CHAT=module:name and CHATLOCK_REDIS_URL"),
    ],
)
def test_setting_that_names_nothing_ends_the_command_with_one_line(
    command: str, environment: dict[str, str], line: str
) -> None:
    ended = run(command, **environment)
    assert (ended.exit_code, ended.output) == (2, f"{line}\n")


def test_port_that_is_taken_ends_the_command_with_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = {"url": "sqlite:///chat.db", "dispatch": "http", "http_url": "http://app/", "http_secret": SECRET}
        ended = run("poller", **given, port=port)
    line = f"Error: cannot listen on 127.0.0.1:{port}: Address already in use; set another CHATLOCK_PORT\n"
    assert (ended.exit_code, ended.output) == (2, line)


@pytest.mark.parametrize("command", ["poller", "worker"])
def test_missing_extra_ends_the_command_with_one_line(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rq", None)
    monkeypatch.delitem(sys.modules, "chatlock.rq_jobs", raising=False)
    ended = run(command, **INLINE, dispatch="rq", redis_url="redis://cache/0", port="0")
    assert (ended.exit_code, ended.output) == (2, "Error: this needs rq: install chatlock with its extra 'redis'\n")
