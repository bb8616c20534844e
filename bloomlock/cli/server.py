"""`bloomlock server`: start, stop and look at the embedded server."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from bloomlock import server
from bloomlock.errors import BloomlockError

from .filters import size_text
from .options import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOT_RUNNING = 3  # what `systemctl status` and init scripts answer


@click.group(
    "server",
    epilog=examples("bloomlock server status", "bloomlock server stop"),
)
def server_group() -> None:
    """Start, stop or look at the embedded server of this user."""


@server_group.command("start")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="Seconds to wait until it has read its data.",
)
def start_command(timeout: float) -> None:
    """Start the server if it does not run; its data are still there."""
    with _one_sentence():
        started = server.start(timeout)
        state = server.status()
    what = "started" if started else "already running"
    click.echo(f"{what}: pid {state.pid}, {state.url}")


@server_group.command("stop")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds after which it is ended by force at the latest.",
)
def stop_command(timeout: float) -> None:
    """Stop the server; its data stay on disk."""
    with _one_sentence():
        stopped = server.stop(timeout)
    click.echo("stopped" if stopped else "was not running")


@server_group.command("status")
def status_command() -> None:
    """Say how the server is.

    Exit status: 0 if it runs, 1 if it runs and refuses writes, 3 if it does not run.
    """
    with _one_sentence():
        state = server.status()
    if not state.running:
        click.echo(f"not running, data in {state.data_dir}")
        sys.exit(_NOT_RUNNING)
    click.echo(
        f"{'reading its data' if state.loading else 'running'}: pid {state.pid}, "
        f"Valkey {state.version}, up {_duration(state.uptime or 0)}, {state.keys} keys, "
        f"{size_text(state.memory_bytes or 0)} of memory, "
        f"{size_text(state.aof_bytes or 0)} on disk, {state.url}"
    )
    if state.refuses_writes:
        raise click.ClickException(f"it refuses all writes: {state.refuses_writes}")


@contextmanager
def _one_sentence() -> Iterator[None]:
    try:
        yield
    except BloomlockError as error:
        raise click.ClickException(str(error)) from error


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s"))
    shown = [f"{number} {unit}" for number, unit in parts if number]
    return " ".join(shown[:2]) or "0 s"
