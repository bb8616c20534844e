"""The command line: `bloomlock dedup`, `load`, `add`, `exists`, `info`, `ls`, `clear`, ...

Over public names only. A command is imported when it is called, so that none pays for the others.
"""

from __future__ import annotations

import gc
import importlib
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn, cast

import click

from bloomlock import __speed__, __version__

from .errors import ERROR, Stopped, die, report_errors, say
from .options import examples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMANDS = {
    "dedup": ("dedup:dedup_command", "Write each line that was never seen before."),
    "load": ("load:load_command", "Add the lines of files, in bulk."),
    "add": ("items:add_command", "Add items and write how many were new."),
    "exists": ("items:exists_command", "Say whether items were added."),
    "discard": ("items:discard_command", "Forget items and write how many were there."),
    "info": ("filters:info_command", "Show a filter's parameters and how full it is."),
    "ls": ("filters:ls_command", "List all filters."),
    "clear": ("filters:clear_command", "Empty filters, keeping their parameters."),
    "delete": ("filters:delete_command", "Delete filters, also broken ones."),
    "filter": ("filter_group:filter_group", "Filters to files and servers, combined, renamed, ..."),
    "plan": ("plan:plan_command", "Say what a filter will take."),
    "lock": ("lock:lock_command", "Hold a lock while a command runs."),
    "claims": ("claims:claims_group", "Look after items that were claimed, or failed."),
    "once": ("once:once_command", "Run a command unless it was done."),
    "server": ("server:server_group", "Start, stop or look at the embedded server."),
    "migrate-scrapy": ("migrate:migrate_command", "Make a filter of what a crawl has seen."),
    "crawl": ("crawl:crawl_command", "Crawl a site with several Scrapy processes."),
}
"""Where each command is, and what --help says of it: for that none is imported."""


class LazyGroup(click.Group):
    """A group that imports a command when it is needed.

    Args:
        places: As COMMANDS, the most used first.
    """

    def __init__(self, *args: Any, places: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*args, **options)
        # By these click finds what a misspelt name may have meant.
        self.commands = {name: click.Command(name) for name in places}
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command; None if there is none of that name."""
        if cmd_name not in self._places:
            return None
        module, _, attribute = self._places[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
        return cast("click.Command", found)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write what the commands do."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in self._places.items()])


class _TopGroup(LazyGroup):
    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, ending as Unix tools do.

        Here and not in `main`, because click handles Ctrl-C and broken pipes in a way of its own.
        """
        try:
            with report_errors():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped(signal.SIGINT) from None
        except BrokenPipeError:
            raise Stopped(signal.SIGPIPE) from None


@click.command(
    cls=_TopGroup,
    places=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "tail -F access.log | cut -d' ' -f7 | bloomlock dedup --name paths",
        'bloomlock add -q urls "$url" && wget "$url"',
    ),
)
@click.version_option(__version__, message=f"%(prog)s %(version)s ({__speed__})")
@click.pass_context
def cli(context: click.Context) -> int | None:
    """Has anyone seen this before? Bloom filters in Redis, shared by many processes.

    The server is the one of --url, else of BLOOMLOCK_URL, else of REDIS_URL, else one that
    bloomlock starts for you; dedup without --name needs none.

    Exit status: 0 if all went well, 1 if the answer is no, 2 after an error; `lock` and `once`
    pass on that of the command they run.
    """
    if context.invoked_subcommand is not None:
        return None
    click.echo(context.get_help(), err=True)
    return ERROR


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        status = cli.main(given, prog_name="bloomlock", standalone_mode=False)
    except click.ClickException as error:
        status = say(error)
    except Stopped as stopped:
        die(stopped.signal)
    # At its end the interpreter would look for garbage among all modules: a quarter of the whole
    # time of `bloomlock add`.
    gc.freeze()
    sys.exit(status if isinstance(status, int) else 0)
