"""The command line: `chatlock`."""

from __future__ import annotations

import click

from chatlock.cli.answer import answer
from chatlock.cli.context import Commands
from chatlock.cli.db import db
from chatlock.cli.health import doctor, verify, windows
from chatlock.cli.load import stats, top
from chatlock.cli.messages import dead, inbox
from chatlock.cli.move import export_command, import_command
from chatlock.cli.replay import replay_command
from chatlock.cli.service import poller, worker
from chatlock.cli.threads import cancel, threads, why
from chatlock.cli.turns import audit, intents, turns


@click.group(cls=Commands)
@click.version_option(package_name="chatlock")
def main() -> None:
    """One turn per conversation thread.

    Commands that need the database take it from CHATLOCK_URL (or --url), and the tenant from
    CHATLOCK_TENANT (or --tenant). Exit codes: 0 all is well, 1 refused or a check failed, 2 usage,
    3 stuck threads were found, 4 someone was faster, 5 the database cannot serve.

    \b
    Examples:
      chatlock threads ls --all-tenants --stuck
      chatlock why --tenant acme t1
      chatlock top
    """


for command in (
    *(threads, why, answer, cancel, inbox, dead, turns, intents, audit),
    *(stats, top, windows, verify, doctor, replay_command),
    *(db, export_command, import_command, poller, worker),
):
    main.add_command(command)
