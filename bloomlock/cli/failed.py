"""`bloomlock failed`: the requests of a Scrapy crawl that failed, and what is done about them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from bloomlock.server import explained, find_address

from .errors import NO, Failure
from .fingerprints import connect
from .options import example, json_option, name_argument, url_option
from .tables import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_ext.crawl_state import CrawlRecord


@click.command("failed", epilog=example("bloomlock failed shop --retry"))
@name_argument
@click.option("--retry", is_flag=True, help="Put them back; the crawl goes on when it is started.")
@click.option("--drop", is_flag=True, help="Drop them.")
@json_option
@url_option
def failed_command(
    name: str, *, retry: bool, drop: bool, as_json: bool, url: str | None
) -> int | None:
    """Show the requests of the crawl NAME that failed, put them back, or drop them.

    NAME is BLOOMLOCK_NAME, the name of the spider by default.

    Exit status: 0; with --retry or --drop 1 if none had failed; 2 after an error.
    """
    if retry and drop:
        raise Failure("--retry and --drop exclude each other")
    with connected(url) as client:
        record = crawl_record(client, name)
        if retry or drop:
            count = record.settle(retry=retry)
            click.echo(f"{count} {'put back' if retry else 'dropped'}")
            return 0 if count else NO
        rows = [{"url": one.url, "error": one.error} for one in record.failed()]
    if as_json:
        print_json(rows)
    elif rows:
        print_table([[row["url"], row["error"]] for row in rows], ("URL", "ERROR"))
    return None


@contextlib.contextmanager
def connected(url: str | None) -> Iterator[Any]:
    """Yield a client of the server that a user means."""
    address = find_address(url, name="--url")
    with explained(address), connect(address.url) as client:
        yield client


def crawl_record(client: Any, name: str) -> CrawlRecord:
    """Return the crawl of a name."""
    try:
        from scrapy_ext.crawl_state import CrawlRecord  # noqa: PLC0415 - only here it is needed
    except ModuleNotFoundError as error:
        raise Failure("crawls need Scrapy: pip install 'bloomlock[scrapy]'") from error
    return CrawlRecord(client, name)
