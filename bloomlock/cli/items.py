"""`bloomlock add`, `exists` and `discard`: items for scripts, lists from standard input."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from .errors import NO
from .fingerprints import FINGERPRINTERS, SCRAPY, url_fingerprint
from .options import (
    FilterOptions,
    examples,
    filter_options,
    key_option,
    name_argument,
    on_full_option,
    open_as_it_is,
    url_option,
)
from .pipeline import LineFilter, add_lines, discard_lines, sizer_on_server, test_lines
from .streams import STDIN, check_files, most_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock import BloomFilter

_items_argument = click.argument("items", nargs=-1, metavar="[ITEM]...")


@click.command(
    "add",
    epilog=examples(
        'bloomlock add -q urls "$url" && wget "$url"',
        "bloomlock add urls < list-of-urls.txt",
    ),
)
@name_argument
@_items_argument
@filter_options
@on_full_option
@click.option("-q", "--quiet", is_flag=True, help="Write nothing; the exit status is the answer.")
def add_command(name: str, items: tuple[str, ...], *, quiet: bool, **options: Any) -> int:
    """Add ITEMs to the filter NAME and write how many were new.

    Without ITEMs each line of standard input is one. The filter is created if there is none.

    Exit status, as that of grep -c: 0 if any item was new, 1 if all were seen before, 2 after an
    error. Of any number of processes that add the same new item exactly one gets a 0.
    """
    check_files(() if items else (STDIN,))
    lines = None if items else most_lines((STDIN,))
    work = LineFilter(add_lines, write=None)
    with FilterOptions(**options, lines=lines).create_or_open(name) as bloom:
        _do(work, bloom, items)
    if not quiet:
        click.echo(work.new)
    return 0 if work.new else NO


@click.command(
    "exists",
    epilog=examples(
        'bloomlock exists urls "$url" || echo "never seen"',
        "bloomlock exists urls --new < list-of-urls.txt",
    ),
)
@name_argument
@_items_argument
@url_option
@key_option
@click.option("--seen", "write", flag_value="seen", help="Write the items that were seen before.")
@click.option("--new", "write", flag_value="new", help="Write the items that were not.")
def exists_command(
    name: str, items: tuple[str, ...], *, url: str | None, key: bytes | None, write: str | None
) -> int:
    """Say whether ITEMs were added to the filter NAME; adds nothing.

    Without ITEMs each line of standard input is one. A yes is wrong at the filter's error rate,
    a no never.

    Exit status: 0 if all were seen, 1 if some were not, 2 after an error.
    """
    check_files(() if items else (STDIN,))
    work = LineFilter(test_lines, write=None if write is None else write == "new")
    with open_as_it_is(name, url, key) as bloom:
        _do(work, bloom, items)
    return NO if work.new else 0


@click.command(
    "discard",
    epilog=examples(
        'bloomlock discard urls "$url"',
        "bloomlock discard urls < list-of-urls.txt",
        "bloomlock discard shop:dupefilter --urls https://shop.example/news",
    ),
)
@name_argument
@_items_argument
@url_option
@key_option
@click.option(
    "--urls",
    is_flag=True,
    help="The items are URLs: forget the requests of a spider that GET them.",
)
@click.option(
    "--fingerprinter",
    type=click.Choice(FINGERPRINTERS),
    default=SCRAPY,
    show_default=True,
    help="What --urls takes: Scrapy's own, that of scrapy-redis, or that of Scrapy before 2.7.",
)
@click.option("-q", "--quiet", is_flag=True, help="Write nothing; the exit status is the answer.")
def discard_command(
    name: str,
    items: tuple[str, ...],
    *,
    url: str | None,
    key: bytes | None,
    urls: bool,
    fingerprinter: str,
    quiet: bool,
) -> int:
    """Forget ITEMs of the filter NAME, and write how many were there; no other item is touched.

    Without ITEMs each line of standard input is one. What is forgotten is new to the next that adds
    it. After an interruption run the same command again: what was forgotten stays so.

    Exit status, as that of grep -c: 0 if any item was there, 1 if none was, 2 after an error.
    """
    check_files(() if items else (STDIN,))
    take = url_fingerprint(fingerprinter) if urls else None
    work = LineFilter(partial(discard_lines, take=take), write=None)
    with open_as_it_is(name, url, key) as bloom:
        _do(work, bloom, items)
    if not quiet:
        click.echo(work.new)
    return 0 if work.new else NO


def _do(work: LineFilter[BloomFilter], bloom: BloomFilter, items: Sequence[str]) -> None:
    if items:
        work.do_items(bloom, [os.fsencode(item) for item in items])
    else:
        work.do_files(bloom, (STDIN,), sizer_on_server(bloom))
