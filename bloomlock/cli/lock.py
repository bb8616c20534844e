"""`bloomlock lock`: run a command under a lock, on any number of machines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from .examples import examples
from .failures import Stopped
from .holding import Job, run_under_lock
from .options import name_argument, url_option

if TYPE_CHECKING:
    from collections.abc import Sequence


def seconds(text: str | float) -> float:
    """Return a number of seconds.

    Raises:
        click.BadParameter: If it is none.

    >>> seconds("0.5")
    0.5
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise click.BadParameter(f"it must be a number of seconds, at least 0, not {text!r}")
    return number


class LockCommand(click.Command):
    """A command whose options may stand before or after NAME, but not in COMMAND.

    In `bloomlock lock logs grep -n error` the -n is grep's.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the options first."""
        ctx.allow_interspersed_args = False
        options, operands = self._split(ctx, args)
        more, command = self._split(ctx, operands[1:])
        return super().parse_args(ctx, [*options, *more, "--", *operands[:1], *command])

    def _split(self, ctx: click.Context, args: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the options at the beginning, and the rest."""
        params = self.get_params(ctx)
        options = [param for param in params if param.param_type_name == "option"]
        only_options = click.Command(None, params=options, add_help_option=False)
        _, rest, _ = only_options.make_parser(ctx).parse_args(list(args))
        first = list(args[: len(args) - len(rest)])
        return first[:-1] if first[-1:] == ["--"] else first, rest


@click.command(
    "lock",
    cls=LockCommand,
    epilog=examples(
        "bloomlock lock backup -n -- rsync -a /srv/ backup:/srv/",
        "bloomlock lock deploy --timeout 60 -E 99 make deploy",
        "bloomlock lock --shared index -- search-server",
    ),
)
@name_argument
@click.argument("command", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
@click.option("-n", "--nonblock", is_flag=True, help="Do not wait: --timeout 0.")
@click.option(
    "-w",
    "--timeout",
    type=seconds,
    metavar="SECONDS",
    help="How long to wait for the lock.  [default: for ever]",
)
@click.option(
    "-E",
    "--conflict-exit-code",
    "conflict",
    type=click.IntRange(0, 255),
    default=1,
    show_default=True,
    metavar="N",
    help="Exit status if the lock is not to be had in that time.",
)
@click.option("--fair", is_flag=True, help="Strictly in the order of asking.")
@click.option(
    "-s/-x",
    "--shared/--exclusive",
    "shared",
    help="Together with others that say --shared, or alone.  [default: --exclusive]",
)
@click.option(
    "--ttl",
    type=seconds,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the lock stays taken if this machine dies; it is renewed while COMMAND runs.",
)
@click.option(
    "--grace",
    type=seconds,
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long after SIGTERM a COMMAND that has lost its lock is sent SIGKILL.",
)
@url_option
@click.option("-v", "--verbose", is_flag=True, help="Say how long it took to get the lock.")
def lock_command(
    name: str, command: tuple[str, ...], *, nonblock: bool, fair: bool, shared: bool, **rest: Any
) -> int:
    """Run COMMAND while holding the lock NAME, which nobody else holds meanwhile, anywhere.

    As flock(1), across machines. Options end where COMMAND begins; "--" may stand before it.
    COMMAND finds the number of this grant in BLOOMLOCK_FENCE, higher than those of all grants
    before, and NAME in BLOOMLOCK_LOCK_NAME. What it leaves in the background goes on without the
    lock.

    If the lock is lost (somebody deleted it, or the server cannot be reached until the lease is
    over), COMMAND is sent SIGTERM, and SIGKILL after --grace. The same if bloomlock is killed.
    The signals HUP, INT, QUIT, TERM, USR1 and USR2 are sent on to COMMAND.

    Exit status: that of COMMAND; 128 + N if signal N ended it; 126 if it cannot be run, 127 if
    there is none such; 1 (see -E) if the lock was not to be had in time; 75 if the lock was lost;
    2 after an error.
    """
    if shared and fair:
        raise click.UsageError("--fair and --shared do not go together")
    if nonblock and rest["timeout"]:
        raise click.UsageError("--nonblock and --timeout do not go together")
    if nonblock:
        rest["timeout"] = 0.0
    kind = "shared" if shared else "fair" if fair else "plain"
    outcome = run_under_lock(Job(name, command, kind=kind, **rest))
    if outcome.signal is not None:
        raise Stopped(outcome.signal)
    return outcome.status
