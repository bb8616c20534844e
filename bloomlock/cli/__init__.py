"""The command line: `bloomlock dedup`, `add`, `exists`, `filter`, `lock`, `once`, ...

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

from .errors import Stopped, die, report_errors, say
from .options import example

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Places = Mapping[str, tuple[str, str]]

GROUPS: dict[str, Places] = {
    "filter": {
        "ls": ("filters:ls_command", "Write the names of all filters."),
        "top": ("top:top_command", "Watch filters fill, claims and locks."),
        "info": ("filters:info_command", "Show a filter's parameters and fill."),
        "plan": ("filters:plan_command", "Say what a filter would take."),
        "create": ("filters:create_command", "Create a filter, and say what it takes."),
        "clear": ("filters:clear_command", "Empty a filter, keeping its parameters."),
        "delete": ("filters:delete_command", "Delete a filter, also a broken one."),
        "copy": ("filters:copy_command", "Copy a filter to another server or name."),
        "export": ("filters:export_command", "Write a filter to a file."),
        "import": ("filters:import_command", "Make a filter of what export wrote."),
    },
    "claims": {
        "ls": ("claims:ls_command", "Show what is claimed, and what failed."),
        "retry": ("claims:retry_command", "Give failed items to workers again."),
        "drop": ("claims:drop_command", "Drop failed items."),
    },
    "server": {
        "status": ("server:status_command", "Say how the embedded server is."),
        "stop": ("server:stop_command", "Stop the embedded server."),
    },
}
COMMANDS: Places = {
    "dedup": ("items:dedup_command", "Write each line that was never seen before."),
    "add": ("items:add_command", "Add items, and write how many were new."),
    "exists": ("items:exists_command", "Say whether items were added."),
    "discard": ("items:discard_command", "Discard items: they are new again."),
    "filter": ("", "Create filters, look at them, move and delete them."),
    "lock": ("holding:lock_command", "Hold a lock while a command runs."),
    "once": ("holding:once_command", "Run a command unless it was done."),
    "claims": ("", "Look after items that were claimed, or failed."),
    "server": ("", "Look at the embedded server, or stop it."),
    "scrapy-import": ("crawls:import_command", "Make a filter of what a crawl has seen."),
    "failed": ("crawls:failed_command", "Look after requests of a crawl that failed."),
    "crawl": ("crawl:crawl_command", "Crawl a site with several Scrapy processes."),
}
"""Where each command is, and what --help says of it: for that none is imported."""

STATUSES = """\b
Exit status:
  0, 1, 2          yes, or all went well; no (`server status`: 3); an error
  75               `lock`, `once`: busy, or lost meanwhile
  126, 127, 128+N  COMMAND cannot be run, is not found, was ended by signal N

"""


class LazyGroup(click.Group):
    """A group that imports a command when it is needed; `places` is as COMMANDS."""

    def __init__(self, *args: Any, places: Places, **options: Any) -> None:
        super().__init__(*args, **options)
        # By these click finds what a misspelt name may have meant.
        self.commands = {name: click.Command(name) for name in places}
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        place, what = self._places.get(cmd_name, ("", ""))
        if places := GROUPS.get(cmd_name if what and not place else ""):
            first = example(f"bloomlock {cmd_name} {next(iter(places))} --help")
            return LazyGroup(cmd_name, places=places, help=what, epilog=first)
        if not place:
            return None
        module, _, attribute = place.partition(":")
        found = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
        return cast("click.Command", found)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in self._places.items()])


class _TopGroup(LazyGroup):
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # --help and --version stand in the usage.
        self.format_commands(ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        # Here and not in `main`, because click handles Ctrl-C and broken pipes in a way of its own.
        try:
            with report_errors():
                return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):  # click's, for Ctrl-C at a question
            raise Stopped(signal.SIGINT) from None
        except BrokenPipeError:
            raise Stopped(signal.SIGPIPE) from None


@click.command(
    cls=_TopGroup,
    places=COMMANDS,
    options_metavar="[-h|--help|--version]",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=STATUSES + example("bloomlock dedup urls.txt more.txt > unique.txt"),
)
@click.version_option(__version__, message=f"%(prog)s %(version)s ({__speed__})")
def cli() -> None:
    """Has anyone seen this before? Bloom filters that many processes share."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
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
