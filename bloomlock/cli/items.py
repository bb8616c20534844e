"""`bloomlock add`, `exists` and `discard`: items for scripts, lists from standard input."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from .answers import Answers, add, answer, discard, test
from .errors import NO, Failure, advise
from .lines import STDIN, measure
from .options import example, items_argument, name_argument, opens_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock import BloomFilter

    from .options import Named

FINGERPRINTERS = ("scrapy", "scrapy-redis", "earlier")
"""Of Scrapy since 2.7, of scrapy-redis since 0.8, and of both before."""
_AGAIN = "run the same command again: adding a line twice changes nothing"

_quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Write nothing; the exit status is the answer."
)


@click.command("add", epilog=example('bloomlock add -q urls "$url" && wget "$url"'))
@name_argument
@items_argument
@_quiet_option
@opens_filter
def add_command(named: Named, items: tuple[str, ...], *, quiet: bool) -> int:
    """Add ITEMs, or the lines of standard input, and write how many were new.

    `bloomlock filter create` makes the filter. Of all processes that add the same new item
    exactly one finds it new.

    Exit status: 0 if any item was new, 1 if all were seen before, 2 after an error.
    """
    measure(() if items else (STDIN,))
    with named as bloom, nullcontext() if items else advise(_AGAIN):
        found = answer(add, bloom, items=items)
    if not quiet:
        click.echo(found.new)
    return 0 if found.new else NO


@click.command("exists", epilog=example("bloomlock exists urls --new < list-of-urls.txt"))
@name_argument
@items_argument
@click.option("--seen", "write", flag_value="seen", help="Write the items that were seen before.")
@click.option("--new", "write", flag_value="new", help="Write the items that were not.")
@opens_filter
def exists_command(named: Named, items: tuple[str, ...], *, write: str | None) -> int:
    """Say whether ITEMs, or the lines of standard input, were added; adds nothing.

    A yes is wrong at the filter's error rate, a no never.

    Exit status: 0 if all were seen, 1 if some were not, 2 after an error.
    """
    measure(() if items else (STDIN,))
    chosen = None if write is None else write == "new"
    with named as bloom:
        found = answer(test, bloom, items=items, write=chosen)
    return NO if found.new else 0


@click.command("discard", epilog=example('bloomlock discard urls "$url"'))
@name_argument
@items_argument
@click.option("--urls", is_flag=True, help="ITEMs are URLs: discard the requests of a spider.")
@click.option(
    "--fingerprinter",
    type=click.Choice(FINGERPRINTERS),
    metavar="WHOSE",
    default=FINGERPRINTERS[0],
    help="Of --urls: scrapy, scrapy-redis, earlier.",
)
@_quiet_option
@opens_filter
def discard_command(
    named: Named, items: tuple[str, ...], *, urls: bool, fingerprinter: str, quiet: bool
) -> int:
    """Discard ITEMs, or the lines of standard input; write how many were there.

    No other item is touched. A discarded item is new to the next that adds it.

    Exit status: 0 if any item was there, 1 if none was, 2 after an error.
    """
    measure(() if items else (STDIN,))
    take = _url_fingerprint(fingerprinter) if urls else bytes

    def discard_taken(bloom: BloomFilter, lines: Sequence[bytes]) -> Answers:
        return discard(bloom, list(map(take, lines)))

    with named as bloom:
        found = answer(discard_taken, bloom, items=items)
    if not quiet:
        click.echo(found.new)
    return 0 if found.new else NO


def _url_fingerprint(kind: str) -> Callable[[bytes], bytes]:
    """Return what takes the fingerprint of a request that GETs a URL."""
    try:
        from scrapy import Request  # noqa: PLC0415 - optional

        from scrapy_ext.fingerprints import KNOWN  # noqa: PLC0415
    except ImportError as error:
        raise Failure(f"--urls needs Scrapy ({error}); pip install 'bloomlock[scrapy]'") from None
    taker = dict(zip(FINGERPRINTERS, KNOWN.values(), strict=True))[kind]()

    def take(url: bytes) -> bytes:
        try:
            return bytes(taker.fingerprint(Request(os.fsdecode(url))))
        except ValueError as error:
            raise Failure(f"{os.fsdecode(url)[:200]!r} is no URL of a request: {error}") from None

    return take
