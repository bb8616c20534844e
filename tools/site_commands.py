"""A hook of mkdocs: the commands of `bloomlock`, which are imported when called, are loaded."""

from __future__ import annotations

from typing import Any

import click

from bloomlock.cli import cli


def on_config(config: Any) -> Any:
    """Give mkdocs-click the commands themselves; it reads no more than `commands`."""
    _load(cli)
    return config


def _load(group: click.Group) -> None:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            _load(command)
        if command is not None:
            group.commands[name] = command
