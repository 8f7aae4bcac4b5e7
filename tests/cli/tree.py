"""Every command there is."""

from __future__ import annotations

import click

from chatlock.cli import main


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The words of every command and every group."""
    found = [path]
    for name, command in group.commands.items():
        found += commands(command, (*path, name)) if isinstance(command, click.Group) else [(*path, name)]
    return found


def leaves() -> list[tuple[str, ...]]:
    """The words of every command that is no group."""
    return [path for path in commands() if path and not _is_group(path)]


def _is_group(path: tuple[str, ...]) -> bool:
    command: click.Command = main
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    return isinstance(command, click.Group)
