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

from .errors import NO, SIGNALLED, Failure, noted_signals, warn
from .options import (
    count,
    create_or_open,
    example,
    json_option,
    key_option,
    name_argument,
    time_option,
    url_option,
    value_option,
)
from .output import is_terminal, print_json, print_table, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bloomlock import BloomFilter
    from scrapy_ext.crawl_state import CrawlRecord

    Source = tuple[str, int, Iterator[bytes]]
    """The title of a source of fingerprints, how many it has, more or less, and they themselves."""

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
@time_option("--delay", what="Between two pages, of all together.  [default: by answers]")
@click.option("--watch", is_flag=True, help="Show live figures on a page of this machine.")
@json_option
@url_option
def crawl_command(*, as_json: bool, watch: bool, **options: Any) -> None:
    """Crawl a site with several Scrapy processes that share one filter and queue.

    Without an argument: the documentation of Python's library.
    """
    # These import Scrapy, which takes its time.
    from scrapy_ext.crawl.job import Job  # noqa: PLC0415
    from scrapy_ext.crawl.watch import watched  # noqa: PLC0415

    # SIGTERM ends the workers and cleans up like Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    job = Job(options)
    try:
        with (
            connected(options["url"]) as (client, url),
            watched(job) if watch else nullcontext("") as page,
            _telling() as tell,
        ):
            if page:
                click.echo(f"live figures: {page}", err=True)
            job.run(client, url, lambda text: tell([text] if text else _lines(job.figures())))
    finally:
        signal.signal(signal.SIGTERM, before)
    figures = job.figures()
    if as_json:
        print_json(figures)
    else:
        click.echo(f"Crawl of {figures['title']}")
        print_table((what, f"{number:>12}", more) for what, number, more in _rows(figures))
    for line in (*figures["notes"], *figures["failures"]):
        warn(line)
    status = SIGNALLED + signal.SIGINT if figures["interrupted"] else not figures["ok"]
    click.get_current_context().exit(status)


@contextmanager
def _telling() -> Iterator[Callable[[list[str]], object]]:
    """Yield what shows lines; where there is no terminal, the last of them now and then."""
    if is_terminal(sys.stderr):
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
    seconds, pages, links = max(job["seconds"], 1e-3), job["pages"], job["links"]
    share = job["duplicates"] / links if links else 0.0
    yield "pages fetched", f"{pages:,}", f"by {len(job['workers'])} processes in {seconds:.1f} s"
    yield "links checked", f"{links:,}", f"{job['distinct']:,} different"
    yield "duplicates filtered", f"{job['duplicates']:,}", f"{share:.1%} of the links"
    yield "pages fetched twice", f"{len(job['twice']):,}", _urls(job["twice"])
    if (missed := job["missed"]) is not None:
        yield "pages missed", f"{len(missed):,}", _urls(missed) or "links found and never fetched"
    if failed := [f"{url}: {why}" for url, why in job["failed"].items()]:
        yield "pages not to be had", f"{len(failed):,}", _urls(failed)
    if job["waiting"]:
        yield "pages left in the queue", f"{job['waiting']:,}", "stopped before the end"
    yield "rate", f"{pages / seconds:,.0f} pages/s", f"{links / seconds:,.0f} links/s"
    if size := job["filter_bytes"]:
        yield "memory of the filter", size_text(size), f"{job['fill']:.3%} full"


def _urls(urls: list[str]) -> str:
    more = f", and {len(urls) - _SHOWN:,} more" if len(urls) > _SHOWN else ""
    return ", ".join(urls[:_SHOWN]) + more


@click.command("scrapy-import", epilog=example("bloomlock scrapy-import shop:dupefilter"))
@click.argument("source", metavar="KEY|FILE")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--from", "source_url", metavar="URL", help="Server of KEY.  [default: the filter's]")
@value_option("--capacity", kind=count, what="Of a new filter.  [default: twice what is there]")
@click.option("--undo", is_flag=True, help="KEY: its queue gets what waits in the crawl NAME.")
@url_option
@key_option
def import_command(
    source: str,
    name: str | None,
    *,
    source_url: str | None,
    undo: bool,
    url: str | None,
    **given: Any,
) -> int:
    """Add what a crawl has seen to the filter of the crawl NAME.

    KEY is the set of scrapy-redis; FILE is Scrapy's requests.seen, or the JOBDIR.
    Neither is changed. NAME, the spider's by default, is a crawl that its next
    process goes on with. The settings for it are written. The old crawl may run;
    after an interruption run the same command again. The queue of scrapy-redis
    is moved by the first process; --undo moves it back, with status 1 if none waits.
    """
    if undo:
        return _undo(source, name or source.removesuffix(":requests"), url)
    path = Path(source)
    is_file = os.sep in source or path.exists()
    if is_file and name is None:
        raise Failure("NAME is missing: that of the spider")
    with ExitStack() as stack:
        if is_file:
            title, size, fingerprints = seen_file(path)
        else:
            where = stack.enter_context(connected(source_url or url, "--from"))
            title, size, fingerprints = redis_set(*where, source)
        name = name or source.removesuffix(":dupefilter")
        with connected(url) as (client, _):
            from scrapy_ext.crawl_state import CrawlRecord  # noqa: PLC0415 - it needs Scrapy

            prefix = CrawlRecord(client, name).prepare()
        parameters = {option: value for option, value in given.items() if value is not None}
        parameters["client"] = url
        bloom = stack.enter_context(create_or_open(name, parameters, _ROOM * size, prefix=prefix))
        read = _update(bloom, fingerprints)
    warn(f"{read} fingerprints read from {title}; all are in the filter")
    warn("if the old crawl still runs, run the same command again when it has stopped")
    click.echo('ADDONS = {"scrapy_ext.BloomlockAddon": 500}')
    click.echo(f"BLOOMLOCK_NAME = {json.dumps(bloom.name.replace('%', '%%'))}")
    click.echo(f"BLOOMLOCK_CAPACITY = {bloom.capacity}")
    click.echo(f"BLOOMLOCK_ERROR_RATE = {bloom.error_rate}")
    if not is_file:
        click.echo('REQUEST_FINGERPRINTER_CLASS = "scrapy_ext.ScrapyRedisFingerprinter"')
    if "key" in parameters:
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


def _update(bloom: BloomFilter, coming: Iterator[bytes]) -> int:
    """Add all fingerprints; return how many there were."""
    total = 0
    with noted_signals() as check:
        while batch := list(islice(coming, _BATCH)):
            check()
            bloom.update(batch)
            total += len(batch)
        check()
    return total


@click.command("failed", epilog=example("bloomlock failed shop --retry"))
@name_argument
@click.option("--retry", is_flag=True, help="Put them back; the crawl goes on when it is started.")
@click.option("--drop", is_flag=True, help="Drop them.")
@url_option
def failed_command(name: str, *, retry: bool, drop: bool, url: str | None) -> int:
    """Show the requests of the crawl NAME that failed, put them back, or drop them.

    NAME is BLOOMLOCK_NAME, the name of the spider by default. With --retry and --drop
    the exit status is 1 if none had failed.
    """
    if retry and drop:
        raise Failure("--retry and --drop exclude each other")
    with _crawl_that_is_there(name, url) as (_, record):
        if retry or drop:
            count = record.settle(retry=retry)
            click.echo(f"{count} {'put back' if retry else 'dropped'}")
            return 0 if count else NO
        from scrapy_ext.requests import url_of  # noqa: PLC0415 - it needs Scrapy

        rows = [(url_of(entry), why) for entry, why in record.failed()]
    if rows:
        print_table(rows, ("URL", "ERROR"))
    return 0


@contextmanager
def _crawl_that_is_there(name: str, url: str | None) -> Iterator[tuple[Any, CrawlRecord]]:
    from scrapy_ext.crawl_state import CrawlRecord  # noqa: PLC0415 - it needs Scrapy

    with connected(url) as (client, where):
        record = CrawlRecord(client, name)
        if not record.figures().state:
            raise Failure(f"there is no crawl {name!r} at {hide_secret(where)}; see --url")
        yield client, record


@contextmanager
def connected(url: str | None, name: str = "--url") -> Iterator[tuple[Any, str]]:
    """Yield a client of the server that a user means, or of its cluster, and its URL."""
    address = find_address(url, name=name)
    times = {"socket_timeout": _SECONDS, "socket_connect_timeout": _SECONDS}
    with explained(address):
        client: Any = redis.Redis.from_url(address.url, **times)
        with suppress(ResponseError):  # INFO is forbidden here
            if client.info("cluster").get("cluster_enabled"):
                client.close()
                client = redis.RedisCluster.from_url(address.url)
    with client:
        yield client, address.url


def redis_set(client: Any, url: str, name: str) -> Source:
    """Return the set of scrapy-redis, which may grow while it is read."""
    place, key = hide_secret(url), os.fsencode(name)
    title = f"the set {name!r} at {place}"
    kind = client.type(key).decode()
    if kind == "none":
        raise Failure(f"there is no file and no key {name!r} at {place}")
    if kind != "set":
        raise Failure(f"{name!r} is a {kind} in Redis, not a set as of scrapy-redis")

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


def seen_file(path: Path) -> Source:
    """Return a file `requests.seen`, or that of a job directory."""
    path = path / "requests.seen" if path.is_dir() else path
    data = path.read_bytes()
    first = _RECORD.match(data)
    if first is None:
        raise Failure(f"{path} is no requests.seen of Scrapy: it begins with no fingerprint")
    # A process that was killed leaves an incomplete record, which may run into that of the next
    # one: a page is fetched again. Scrapy 2.19 loses all records from there on.
    found = (record[1] or unhexlify(record[2]) for record in _RECORD.finditer(data))
    return f"the file {path}", len(data) // len(first[0]), found
