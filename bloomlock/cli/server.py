"""`bloomlock server`: look at the embedded server, or stop it."""

from __future__ import annotations

from datetime import timedelta

import click

from bloomlock import server

from .options import example, time_option
from .output import NO, NOT_RUNNING, size_text, warn


@click.group("server", epilog=example("bloomlock server status --help"))
def group() -> None:
    """Look at the embedded server, or stop it."""


@group.command("status", epilog=example("bloomlock server status"))
def status_command() -> int:
    """Say how the embedded server of this user is.

    The exit status is 1 if it refuses writes, 3 if it does not run.
    """
    home, info = server.find_home(), server.status()
    if info is None:
        click.echo(f"not running, data in {home.data_dir}")
        return NOT_RUNNING
    up = timedelta(seconds=info["uptime_in_seconds"])
    keys = sum(value["keys"] for name, value in info.items() if name.startswith("db"))
    click.echo(
        f"{'reading its data' if info['loading'] else 'running'}: pid {info['process_id']}, Valkey "
        f"{info['valkey_version']}, up {up}, {keys} keys, {size_text(info['used_memory'])} of "
        f"memory, {size_text(info.get('aof_current_size', 0))} on disk, {home.url}"
    )
    if info.get("aof_last_write_status", "ok") != "ok":
        warn(f"it refuses all writes: its append-only file in {home.data_dir} cannot be written")
        return NO
    return 0


@group.command("stop", epilog=example("bloomlock server stop"))
@time_option("--timeout", default=10.0, what="After which it is ended by force.")
def stop_command(timeout: float) -> None:
    """Stop the embedded server; its data stay on disk. The next use starts it."""
    click.echo("stopped" if server.stop(timeout) else "was not running")
