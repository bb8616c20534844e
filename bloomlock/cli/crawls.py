"""`bloomlock scrapy-import` and `failed`: what a crawl has seen, and what of it failed.

scrapy-redis keeps a set of hexadecimal digits. Scrapy keeps a file `requests.seen`: until 2.18 each
fingerprint is a line of hexadecimal digits, from 2.19 on its length in two bytes and then itself.
A job directory that was used with both versions has a file with both.
"""

from __future__ import annotations

import mmap
import os
import re
from binascii import unhexlify
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from collections.abc import Iterator

    from bloomlock import BloomFilter
    from scrapy_ext.crawl_state import CrawlRecord

_AGAIN = "run the same command again: adding a fingerprint twice changes nothing"
_FINGERPRINTER = "scrapy_ext.ScrapyRedisFingerprinter"
_ROOM = 2
"""Times what the source holds: the capacity of a new filter, as the crawl goes on."""
_BATCH = 2**16
_SCANNED = 2_000
"""Members in one SSCAN, for which the server takes about a millisecond."""
_SECONDS = 10.0
_LONGEST = 4096
"""Bytes of a fingerprint."""


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
    """Add what a crawl has seen to the filter of the crawl NAME, and verify it.

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
        found: RedisSet | SeenFile
        if os.sep in source or path.exists():
            if name is None:
                raise Failure("NAME is missing: that of the spider")
            found = SeenFile(path)
        else:
            where = connected(source_url or url, "--from")
            found = RedisSet(*stack.enter_context(where), source)
        name = name or source.removesuffix(":dupefilter")
        with connected(url) as (client, _):
            prefix = _crawl_record(client, name).prepare()
        parameters: dict[str, Any] = {"client": url}
        optional = {"key": key, "capacity": capacity}
        parameters |= {option: value for option, value in optional.items() if value is not None}
        room = _ROOM * found.most
        bloom = stack.enter_context(create_or_open(name, parameters, room, prefix=prefix))
        read, late = _import(bloom, found)
        settings = {
            "ADDONS": {"scrapy_ext.BloomlockAddon": 500},
            "BLOOMLOCK_NAME": bloom.name.replace("%", "%%"),
            "BLOOMLOCK_CAPACITY": bloom.capacity,
            "BLOOMLOCK_ERROR_RATE": bloom.error_rate,
        }
    if isinstance(found, RedisSet):
        settings["REQUEST_FINGERPRINTER_CLASS"] = _FINGERPRINTER
    warn(f"{read} fingerprints read from {found.title}; all are in the filter")
    if late:
        warn(f"{late} of them came meanwhile; {_AGAIN}, when the crawl has stopped")
    for setting, value in settings.items():
        click.echo(f"{setting} = {value!r}".replace("'", '"'))
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


def _import(bloom: BloomFilter, source: RedisSet | SeenFile) -> tuple[int, int]:
    """Add all fingerprints twice; return how many there were, and how many were new to the end."""
    total = late = 0
    with noted_signals() as check:
        for is_first in (True, False):
            coming = source.read()
            while batch := list(islice(coming, _BATCH)):
                check()
                if is_first:
                    bloom.update(batch)
                else:
                    late += sum(bloom.add_many(batch))
                    total += len(batch)
        check()
    return total, late


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
        rows = [{"url": one.url, "error": one.error} for one in record.failed()]
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


class RedisSet:
    """The set of scrapy-redis, which may grow while it is read; it holds `most` fingerprints."""

    def __init__(self, client: Any, url: str, key: str) -> None:
        place = hide_secret(url)
        self.title = f"the set {key!r} at {place}"
        self._client = client
        self._key = os.fsencode(key)
        kind = client.type(self._key).decode()
        if kind == "none":
            raise Failure(f"there is no file and no key {key!r} at {place}")
        if kind != "set":
            raise Failure(f"{key!r} is a {kind} in Redis, not a set as of scrapy-redis")
        self.most = client.scard(self._key)

    def read(self) -> Iterator[bytes]:
        # SSCAN gives all members that are there during the whole reading.
        for member in self._client.sscan_iter(self._key, count=_SCANNED):
            try:
                yield unhexlify(member)
            except ValueError:
                raise Failure(
                    f"{self.title} has the member {member[:80]!r}, which is no hexadecimal "
                    "fingerprint"
                ) from None
        if not self._client.exists(self._key):
            raise Failure(
                f"{self.title} was deleted while it was read; scrapy-redis does that where a crawl "
                "closes without SCHEDULER_PERSIST"
            )


class SeenFile:
    """A file `requests.seen`, or that of a job directory; it holds `most` fingerprints at most.

    A process that is killed leaves an incomplete record, and one that goes on with the file writes
    its own right after it. Scrapy 2.19 loses all records from there on; here the next whole one is
    searched. A record that runs into the next one is taken as well: it is that of no request.
    """

    def __init__(self, path: Path) -> None:
        path = path / "requests.seen" if path.is_dir() else path
        self.title = f"the file {path}"
        with path.open("rb") as file:
            empty = not os.fstat(file.fileno()).st_size
            self._data = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # The first shows how long all of them are.
        line = re.match(rb"([0-9a-f]{2,})\r?\n", self._data[: 2 * _LONGEST + 2])
        length = len(line[1]) // 2 if line else int.from_bytes(self._data[:2], "big")
        header = re.escape((length & 0xFFFF).to_bytes(2, "big"))
        self._record = re.compile(
            rb"%b(.{%d})|([0-9a-f]{%d})\r?\n" % (header, length, 2 * length), re.DOTALL
        )
        if not 0 < length <= _LONGEST or not self._record.match(self._data):
            raise Failure(f"{path} is no requests.seen of Scrapy: it begins with no fingerprint")
        self.most = len(self._data) // (length + 2)

    def read(self) -> Iterator[bytes]:
        data, record = self._data, self._record
        match = record.match(data)
        while match:
            yield match[1] or unhexlify(match[2])
            following = record.match(data, match.end())
            # What follows a record shows whether it is whole.
            if following is None and match.end() < len(data):
                following = record.search(data, match.start() + 1)
            match = following
