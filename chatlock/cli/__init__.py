"""The command line: `chatlock`."""

from __future__ import annotations

import click

from chatlock.cli.context import Commands
from chatlock.cli.db import db
from chatlock.cli.service import poller, worker


@click.group(cls=Commands)
@click.version_option(package_name="chatlock")
def main() -> None:
    """One turn per conversation thread.

    Commands that need the database take --url or the environment variable CHATLOCK_URL. The exit
    code is 0 when all is well, 1 when something was refused or a check failed, 2 for a usage
    error, 5 when the database cannot serve.
    """


main.add_command(db)
main.add_command(poller)
main.add_command(worker)
