"""`bloomlock crawl`, `scrapy-import` and `failed`: crawls by Scrapy that share a filter."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from binascii import unhexlify
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import redis
from redis.exceptions import ResponseError

from bloomlock.server import explained, find_address, hide_secret

from . import options, output
from .options import example, value_option
from .output import NO, SIGNALLED, Failure, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_ext.crawl_state import CrawlRecord

_SHOWN = 10
_SILENT_S = 3.0
"""Where there is no terminal a line is written this often."""
_ROOM = 2
"""Times what the source holds: the capacity of a new filter, as the crawl goes on."""
_BATCH = 2**16
_SCANNED = 2_000
"""Members in one SSCAN, for which the server takes about a millisecond."""
_SECONDS = 10.0
_RECORD = re.compile(rb"\0\x14(.{20})|([0-9a-f]{40})\r?\n", re.DOTALL)
"""Of requests.seen: until Scrapy 2.18 a line of hexadecimal digits, from 2.19 on the length in two
bytes and then the fingerprint. A directory that was used with both has a file with both."""


@click.command(
    "crawl",
    epilog=example("bloomlock crawl https://example.org/ --name example --max-pages 500"),
)
@click.argument("source", required=False, metavar="[URL|FOLDER]")
@click.option("--name", metavar="NAME", help="Go on with this crawl, if it was stopped.")
@click.option("--restart", is_flag=True, help="Begin the crawl of --name from the start.")
@value_option("--workers", kind=click.IntRange(1, 64), default=4, what="Scrapy processes.")
@value_option("--capacity", kind=click.IntRange(1), default=100_000, what="Links to reckon with.")
@value_option("--max-pages", kind=click.IntRange(0), default=10_000, what="Then stop; 0: never.")
@click.option("--robots/--no-robots", default=True, help="Obey robots.txt, or not.")
@value_option(
    "--concurrency", kind=click.IntRange(1, 256), default=8, what="Pages at a time, each."
)
@options.time_option("--delay", what="Between two pages, of all together.  [default: by answers]")
@click.option("--watch", is_flag=True, help="Show live figures on a page of this machine.")
@options.json_option
@options.url_option
def crawl_command(*, client: str | None, as_json: bool, watch: bool, **given: Any) -> None:
    """Crawl a site with several Scrapy processes that share one filter and queue.

    Without an argument: the documentation of Python's library.
    """
    from scrapy_ext.crawl.job import Job, watched  # noqa: PLC0415 - it needs Scrapy

    # SIGTERM ends the workers and cleans up like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    job = Job(given)
    with (
        connected(client) as (server, url),
        watched(job) if watch else nullcontext("") as page,
        _telling() as tell,
    ):
        if page:
            click.echo(f"live figures: {page}", err=True)
        job.run(server, url, lambda text: tell([text] if text else _lines(job.figures())))
    figures = job.figures()
    if as_json:
        output.print_json(figures)
    else:
        click.echo(f"Crawl of {figures['title']}")
        output.print_table((what, f"{number:>12}", more) for what, number, more in _rows(figures))
    for line in (*figures["notes"], *figures["failures"]):
        warn(line)
    status = SIGNALLED + signal.SIGINT if figures["interrupted"] else not figures["ok"]
    click.get_current_context().exit(status)


@contextmanager
def _telling() -> Iterator[Callable[[list[str]], object]]:
    """Yield what shows lines; where there is no terminal, the last of them now and then."""
    if output.is_terminal(sys.stderr):
        from rich.console import Console  # noqa: PLC0415
        from rich.live import Live  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        with Live(console=Console(stderr=True), transient=True, refresh_per_second=5) as live:
            yield lambda lines: live.update(
                Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
            )
        return
    shown_at = 0.0

    def show(lines: list[str]) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= _SILENT_S:
            shown_at = time.monotonic()
            click.echo(lines[-1], err=True)

    yield show


def _lines(job: dict[str, Any]) -> list[str]:
    """Return a line for each process, and one for all."""
    what = "process {pid}  {pages:>6,} pages  {links:>8,} links  {last}"
    rate = job["pages"] / max(job["seconds"], 0.1)
    return [
        *(what.format(**worker) for worker in job["workers"]),
        "{pages:,} pages ({rate:.0f}/s), {waiting:,} wait, {links:,} links, {duplicates:,} "
        "duplicates".format(rate=rate, **job),
    ]


def _rows(job: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the table that ends a job."""

    def some(urls: list[str]) -> str:
        return ", ".join(urls[:_SHOWN])

    seconds, pages, links = max(job["seconds"], 1e-3), job["pages"], job["links"]
    share = job["duplicates"] / links if links else 0.0
    yield "pages fetched", f"{pages:,}", f"by {len(job['workers'])} processes in {seconds:.1f} s"
    yield "links checked", f"{links:,}", f"{job['distinct']:,} different"
    yield "duplicates filtered", f"{job['duplicates']:,}", f"{share:.1%} of the links"
    yield "pages fetched twice", f"{len(job['twice']):,}", some(job["twice"])
    if (missed := job["missed"]) is not None:
        yield "pages missed", f"{len(missed):,}", some(missed) or "links found and never fetched"
    if failed := [f"{url}: {why}" for url, why in job["failed"].items()]:
        yield "pages not to be had", f"{len(failed):,}", some(failed)
    if job["waiting"]:
        yield "pages left in the queue", f"{job['waiting']:,}", "stopped before the end"
    yield "rate", f"{pages / seconds:,.0f} pages/s", f"{links / seconds:,.0f} links/s"
    if size := job["filter_bytes"]:
        yield "memory of the filter", output.size_text(size), f"{job['fill']:.3%} full"


@click.command("scrapy-import", epilog=example("bloomlock scrapy-import shop:dupefilter"))
@click.argument("source", metavar="KEY|FILE")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--from", "source_url", metavar="URL", help="Server of KEY.  [default: the filter's]")
@value_option("--capacity", kind=options.count, what="Of a new filter.  [default: twice as many]")
@click.option("--undo", is_flag=True, help="KEY: its queue gets what waits in the crawl NAME.")
@options.where_options
def import_command(
    source: str,
    name: str | None,
    *,
    source_url: str | None,
    capacity: int | None,
    undo: bool,
    client: str | None,
    key: bytes | None,
) -> int:
    """Add what a crawl has seen to the filter of the crawl NAME.

    KEY is the set of scrapy-redis; FILE is Scrapy's requests.seen, or the JOBDIR.
    Neither is changed. NAME, the spider's by default, is a crawl that its next
    process goes on with. The settings for it are written. The old crawl may run;
    after an interruption run the same command again. The queue of scrapy-redis
    is moved by the first process; --undo moves it back, with status 1 if none waits.
    """
    if undo:
        return _undo(source, name or source.removesuffix(":requests"), client)
    path = Path(source)
    is_file = os.sep in source or path.exists()
    if is_file and name is None:
        raise Failure("NAME is missing: that of the spider")
    read = 0
    with ExitStack() as stack:
        if is_file:
            title, size, fingerprints = seen_file(path)
        else:
            place = (source_url, "--from") if source_url else (client, "--url")
            server = stack.enter_context(connected(*place))
            title, size, fingerprints = redis_set(*server, source)
        name = name or source.removesuffix(":dupefilter")
        with connected(client) as (server, _):
            from scrapy_ext.crawl_state import CrawlRecord  # noqa: PLC0415 - it needs Scrapy

            prefix = CrawlRecord(server, name).prepare()
        where = {"client": client, "key": key, "prefix": prefix}
        opened = options.create_or_open(name, _ROOM * size, where, capacity=capacity)
        bloom = stack.enter_context(opened)
        while batch := list(islice(fingerprints, _BATCH)):
            bloom.update(batch)
            read += len(batch)
    warn(f"{read} fingerprints read from {title}; all are in the filter")
    warn("if the old crawl still runs, run the same command again when it has stopped")
    click.echo('ADDONS = {"scrapy_ext.BloomlockAddon": 500}')
    click.echo(f"BLOOMLOCK_NAME = {json.dumps(bloom.name.replace('%', '%%'))}")
    click.echo(f"BLOOMLOCK_CAPACITY = {bloom.capacity}")
    click.echo(f"BLOOMLOCK_ERROR_RATE = {bloom.error_rate}")
    if not is_file:
        click.echo('REQUEST_FINGERPRINTER_CLASS = "scrapy_ext.ScrapyRedisFingerprinter"')
    if key is not None:
        click.echo('BLOOMLOCK_FILTER = {"key": ...}  # the secret of the key file')
    return 0


def _undo(key: str, name: str, url: str | None) -> int:
    with _crawl_that_is_there(name, url) as (client, record):
        from scrapy_ext.requests import to_pickle  # noqa: PLC0415 - it needs Scrapy

        count = 0
        for requests in record.take_all():
            client.zadd(key, {to_pickle(entry): -priority for priority, entry in requests})
            count += len(requests)
    click.echo(f"{count} requests moved to {key}")
    return 0 if count else NO


@click.command("failed", epilog=example("bloomlock failed shop --retry"))
@options.name_argument
@click.option("--retry", "way", flag_value="retry", help="Put them back, for the next start.")
@click.option("--drop", "way", flag_value="drop", help="Drop them.")
@options.url_option
def failed_command(name: str, *, way: str | None, client: str | None) -> int:
    """Show the requests of the crawl NAME that failed, put them back, or drop them.

    NAME is BLOOMLOCK_NAME, the name of the spider by default. With --retry and --drop
    the exit status is 1 if none had failed.
    """
    with _crawl_that_is_there(name, client) as (_, record):
        if way is not None:
            count = record.settle(retry=way == "retry")
            click.echo(f"{count} {'put back' if way == 'retry' else 'dropped'}")
            return 0 if count else NO
        from scrapy_ext.requests import url_of  # noqa: PLC0415 - it needs Scrapy

        rows = [(url_of(entry), why) for entry, why in record.failed()]
    if rows:
        output.print_table(rows, ("URL", "ERROR"))
    return 0


@contextmanager
def _crawl_that_is_there(name: str, url: str | None) -> Iterator[tuple[Any, CrawlRecord]]:
    from scrapy_ext.crawl_state import CrawlRecord  # noqa: PLC0415 - it needs Scrapy

    with connected(url) as (client, where):
        record = CrawlRecord(client, name)
        if not record.look().state:
            raise Failure(f"there is no crawl {name!r} at {hide_secret(where)}; see --url")
        yield client, record


@contextmanager
def connected(url: str | None, name: str = "--url") -> Iterator[tuple[Any, str]]:
    """Yield a client of the server that a user means, or of its cluster, and its URL."""
    address = find_address(url, name=name)
    with explained(address):
        client: Any = redis.Redis.from_url(
            address.url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS
        )
        with suppress(ResponseError):  # INFO is forbidden here
            if client.info("cluster").get("cluster_enabled"):
                client.close()
                client = redis.RedisCluster.from_url(address.url)
    with client:
        yield client, address.url


def redis_set(client: Any, url: str, name: str) -> tuple[str, int, Iterator[bytes]]:
    """Return what to call the set of scrapy-redis, about how many it holds, and what it holds."""
    place, key = hide_secret(url), os.fsencode(name)
    title = f"the set {name!r} at {place}"
    if client.type(key) != b"set":
        raise Failure(f"there is no file {name!r}, and no set of scrapy-redis at {place}")

    def read() -> Iterator[bytes]:
        # SSCAN gives all members that are there during the whole reading.
        for member in client.sscan_iter(key, count=_SCANNED):
            try:
                yield unhexlify(member)
            except ValueError:
                raise Failure(
                    f"{title} has the member {member[:80]!r}, which is no hexadecimal fingerprint"
                ) from None
        if not client.exists(key):
            raise Failure(
                f"{title} was deleted while it was read; scrapy-redis does that where a crawl "
                "closes without SCHEDULER_PERSIST"
            )

    return title, client.scard(key), read()


def seen_file(path: Path) -> tuple[str, int, Iterator[bytes]]:
    """Return the same of a file `requests.seen`, or that of a job directory."""
    path = path / "requests.seen" if path.is_dir() else path
    data = path.read_bytes()
    first = _RECORD.match(data)
    if first is None:
        raise Failure(f"{path} is no requests.seen of Scrapy: it begins with no fingerprint")
    # A process that was killed leaves an incomplete record, which may run into that of the next
    # one: a page is fetched again. Scrapy 2.19 loses all records from there on.
    found = (record[1] or unhexlify(record[2]) for record in _RECORD.finditer(data))
    return f"the file {path}", len(data) // len(first[0]), found
