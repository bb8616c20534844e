"""The command line: `bloomlock dedup`, `add`, `exists`, `filter`, `lock`, `once`, ...

Over public names only. A command is imported when it is called, so that none pays for the others.
"""

from __future__ import annotations

import gc
import importlib
import logging
import signal
import sys
from typing import TYPE_CHECKING, NoReturn, cast

import click

from bloomlock import __speed__, __version__

from .options import example
from .output import ERROR, ShownLog, Stopped, die, message_of, say, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "dedup": ("items:dedup_command", "Write each line that was never seen before."),
    "add": ("items:add_command", "Add items, and write how many were new."),
    "exists": ("items:exists_command", "Say whether items were added."),
    "discard": ("items:discard_command", "Discard items: they are new again."),
    "filter": ("filters:group", "Create filters, look at them, move and delete them."),
    "lock": ("holding:lock_command", "Hold a lock while a command runs."),
    "once": ("holding:once_command", "Run a command unless it was done."),
    "claims": ("claims:group", "Look after items that were claimed, or failed."),
    "server": ("server:group", "Look at the embedded server, or stop it."),
    "scrapy-import": ("crawls:import_command", "Make a filter of what a crawl has seen."),
    "failed": ("crawls:failed_command", "Look after requests of a crawl that failed."),
    "crawl": ("crawls:crawl_command", "Crawl a site with several Scrapy processes."),
}
"""Where each command is, and what --help says of it: for that none is imported."""

STATUSES = """\b
Exit status:
  0, 1, 2          yes, or all went well; no (`server status`: 3); an error
  75               `lock`, `once`: busy, or lost before the end
  126, 127, 128+N  COMMAND cannot be run, is not found, was ended by signal N

"""


_LOG = ShownLog(logging.WARNING)


class _Commands(click.Group):
    """Imports a command when it is needed."""

    # ARG002: click's signatures.
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
        return cast("click.Command", found)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        # --help and --version stand in the usage.
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in COMMANDS.items()])


@click.command(
    cls=_Commands,
    # By their names alone: what there is, and what a misspelt one may have meant.
    commands={name: click.Command(name) for name in COMMANDS},
    options_metavar="[-h|--help|--version]",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=STATUSES + example("bloomlock dedup urls.txt more.txt > unique.txt"),
)
@click.version_option(__version__, message=f"%(prog)s %(version)s ({__speed__})")
def cli() -> None:
    """Has anyone seen this before? Bloom filters that many processes share."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    given = sys.argv[1:] if arguments is None else list(arguments)
    logging.getLogger("bloomlock").addHandler(_LOG)
    try:
        # Not by click's `main`, which ends in ways of its own after Ctrl-C and at a broken pipe.
        with cli.make_context("bloomlock", given) as context:
            status = cli.invoke(context)
    except click.exceptions.Exit as end:
        status = end.exit_code
    except click.ClickException as error:
        status = say(error)
    except (KeyboardInterrupt, click.Abort):  # click's, for Ctrl-C at a question
        die(signal.SIGINT)
    except BrokenPipeError:
        die(signal.SIGPIPE)
    except Stopped as stopped:
        die(stopped.args[0])
    except Exception as error:
        if (message := message_of(error)) is None:
            raise
        warn(message)
        status = ERROR
    # At its end the interpreter would look for garbage among all modules: a quarter of the whole
    # time of `bloomlock add`.
    gc.freeze()
    sys.exit(status if isinstance(status, int) else 0)
