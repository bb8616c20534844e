"""`bloomlock scrapy-import` and `failed`: what a crawl has seen, and what of it failed."""

from __future__ import annotations

import json
import os
import re
from binascii import unhexlify
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import redis
from redis.exceptions import ResponseError

from bloomlock.server import explained, find_address, hide_secret

from .errors import NO, Failure, warn
from .lines import noted_signals
from .options import (
    count,
    create_or_open,
    example,
    json_option,
    key_option,
    name_argument,
    url_option,
    value_option,
)
from .output import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bloomlock import BloomFilter
    from scrapy_ext.crawl_state import CrawlRecord

_AGAIN = "run the same command again: adding a fingerprint twice changes nothing"
_ROOM = 2
"""Times what the source holds: the capacity of a new filter, as the crawl goes on."""
_BATCH = 2**16
_SCANNED = 2_000
"""Members in one SSCAN, for which the server takes about a millisecond."""
_SECONDS = 10.0
_RECORD = re.compile(rb"\0\x14(.{20})|([0-9a-f]{40})\r?\n", re.DOTALL)
"""Of requests.seen: until Scrapy 2.18 a line of hexadecimal digits, from 2.19 on the length in two
bytes and then the fingerprint. A directory that was used with both has a file with both."""


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
    capacity: int | None,
    undo: bool,
    url: str | None,
    key: bytes | None,
) -> int:
    """Add what a crawl has seen to the filter of the crawl NAME.

    KEY is the set of scrapy-redis; FILE is Scrapy's requests.seen, or the JOBDIR.
    Neither is changed. NAME, the spider's by default, is a crawl that its next
    process goes on with. The settings for it are written. The old crawl may run;
    after an interruption run the same command again. The queue of scrapy-redis
    is moved by the first process; --undo moves it back.

    Exit status: 0; 1 if nothing waits that --undo could move; 2 after an error.
    """
    if undo:
        return _undo(source, name or source.removesuffix(":requests"), url)
    with ExitStack() as stack:
        path = Path(source)
        is_file = os.sep in source or path.exists()
        if is_file and name is None:
            raise Failure("NAME is missing: that of the spider")
        if is_file:
            found = seen_file(path)
        else:
            where = stack.enter_context(connected(source_url or url, "--from"))
            found = redis_set(*where, source)
        name = name or source.removesuffix(":dupefilter")
        with connected(url) as (client, _):
            prefix = _crawl_record(client, name).prepare()
        given = {"key": key, "capacity": capacity}
        parameters: dict[str, Any] = {"client": url}
        parameters |= {option: value for option, value in given.items() if value is not None}
        size = found.size()
        bloom = stack.enter_context(create_or_open(name, parameters, _ROOM * size, prefix=prefix))
        read = _update(bloom, found.fingerprints)
        late = found.size() - size
    warn(f"{read} fingerprints read from {found.title}; all are in the filter")
    if late > 0:
        warn(f"{late} came while it was read; {_AGAIN}, when the crawl has stopped")
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
    with _crawl_that_is_there(name, url) as (_, record):
        if retry or drop:
            count = record.settle(retry=retry)
            click.echo(f"{count} {'put back' if retry else 'dropped'}")
            return 0 if count else NO
        from scrapy_ext.requests import url_of  # noqa: PLC0415 - it needs Scrapy

        rows = [{"url": url_of(one.entry), "error": one.error} for one in record.failed()]
    if as_json:
        print_json(rows)
    elif rows:
        print_table([[row["url"], row["error"]] for row in rows], ("URL", "ERROR"))
    return None


@contextmanager
def _crawl_that_is_there(name: str, url: str | None) -> Iterator[tuple[Any, CrawlRecord]]:
    with connected(url) as (client, where):
        record = _crawl_record(client, name)
        if not record.figures().state:
            raise Failure(f"there is no crawl {name!r} at {hide_secret(where)}; see --url")
        yield client, record


def _crawl_record(client: Any, name: str) -> CrawlRecord:
    try:
        from scrapy_ext.crawl_state import CrawlRecord  # noqa: PLC0415 - only here it is needed
    except ModuleNotFoundError as error:
        raise Failure("crawls need Scrapy: pip install 'bloomlock[scrapy]'") from error
    return CrawlRecord(client, name)


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


class Source(NamedTuple):
    """Where fingerprints come from; `size` counts them, more or less."""

    title: str
    size: Callable[[], int]
    fingerprints: Iterator[bytes]


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

    return Source(title, partial(client.scard, key), read())


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
    return Source(f"the file {path}", lambda: path.stat().st_size // len(first[0]), found)
