"""`bloomlock server`: look at the embedded server, or stop it."""

from __future__ import annotations

from datetime import timedelta

import click

from bloomlock import server

from .errors import NO, NOT_RUNNING, warn
from .options import example, time_option
from .output import size_text


@click.group("server", epilog=example("bloomlock server status --help"))
def group() -> None:
    """Look at the embedded server, or stop it."""


@group.command("status", epilog=example("bloomlock server status"))
def status_command() -> int:
    """Say how the embedded server of this user is.

    The exit status is 1 if it refuses writes, 3 if it does not run.
    """
    state = server.status()
    if not state.running:
        click.echo(f"not running, data in {state.data_dir}")
        return NOT_RUNNING
    click.echo(
        f"{'reading its data' if state.loading else 'running'}: pid {state.pid}, "
        f"Valkey {state.version}, up {timedelta(seconds=state.uptime or 0)}, {state.keys} keys, "
        f"{size_text(state.memory_bytes or 0)} of memory, "
        f"{size_text(state.aof_bytes or 0)} on disk, {state.url}"
    )
    if state.refuses_writes:
        warn(f"it refuses all writes: {state.refuses_writes}")
        return NO
    return 0


@group.command("stop", epilog=example("bloomlock server stop"))
@time_option("--timeout", default=10.0, what="After which it is ended by force.")
def stop_command(timeout: float) -> None:
    """Stop the embedded server; its data stay on disk. The next use starts it."""
    click.echo("stopped" if server.stop(timeout) else "was not running")
