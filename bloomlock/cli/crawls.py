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

from .errors import NO, Failure, advise, warn
from .lines import SignalGuard
from .options import create_or_open, example, json_option, key_option, name_argument, url_option
from .output import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bloomlock import BloomFilter
    from scrapy_ext.crawl_state import CrawlRecord

_AGAIN = "run the same command again: adding a fingerprint twice changes nothing"
_SCRAPY_REDIS = "scrapy_ext.ScrapyRedisFingerprinter"
_SCRAPY = "scrapy.utils.request.RequestFingerprinter"
_ALONE = {
    "DUPEFILTER_CLASS": "scrapy_ext.BloomDupeFilter",
    "SPIDER_MIDDLEWARES": {"scrapy_ext.BatchingMiddleware": 10},
}
_ROOM = 2
"""Times what the source holds: the capacity of a new filter, as the crawl goes on."""
_BATCH = 2**16
_SCANNED = 2_000
"""Members in one SSCAN, for which the server takes about a millisecond."""
_SECONDS = 10.0
_HEADER, _USUAL, _LONGEST = 2, 20, 4096
"""Bytes of a length, and of fingerprints."""
_LINE = re.compile(rb"([0-9a-f]{2,})\r?\n")
_SEEN = "requests.seen"


@click.command("scrapy-import", epilog=example("bloomlock scrapy-import shop:dupefilter"))
@click.argument("source", metavar="KEY|FILE")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--from", "source_url", metavar="URL", help="Server of KEY.  [default: the filter's]")
@click.option("--raw", is_flag=True, help="KEY holds fingerprints, not their hex digits.")
@click.option("--alone", is_flag=True, help="For DUPEFILTER_CLASS without our scheduler.")
@click.option("--undo", is_flag=True, help="KEY: its queue gets what waits in the crawl NAME.")
@click.option("--visited", metavar="URL", help="A fetched page: shows the fingerprinter.")
@url_option
@key_option
def import_command(
    source: str,
    name: str | None,
    *,
    source_url: str | None,
    raw: bool,
    alone: bool,
    undo: bool,
    visited: str | None,
    url: str | None,
    key: bytes | None,
) -> int:
    """Add what a crawl has seen to the filter of the crawl NAME, and verify it.

    KEY is the set of scrapy-redis; FILE is Scrapy's requests.seen, or the JOBDIR.
    Neither is changed. NAME, the spider's by default, is a crawl that its next
    process goes on with. The settings for it are written. The old crawl may run;
    after an interruption run the same command again. The queue of scrapy-redis
    is moved by the first process; --undo moves it back.

    Exit status: 0; 1 if the --visited page is not there; 2 after an error.
    """
    if undo:
        return _undo(source, name or source.removesuffix(":requests"), url)
    candidates = _candidates(visited)
    with ExitStack() as stack:
        path = Path(source)
        found: RedisSet | SeenFile
        if os.sep in source or path.exists():
            found = SeenFile(path)
            if name is None:
                raise Failure("NAME is missing: that of the spider")
        else:
            where = connected(source_url or url, "--from")
            found = RedisSet(*stack.enter_context(where), source, raw=raw)
        name = name or source.removesuffix(":dupefilter")
        place = {}
        if not alone:
            with connected(url) as (client, _):
                place["prefix"] = _crawl_record(client, name).prepare()
        parameters = {"client": url} | ({} if key is None else {"key": key})
        bloom = stack.enter_context(create_or_open(name, parameters, _ROOM * found.most, **place))
        with advise(_AGAIN):
            read, late, met = _import(bloom, found, candidates)
            usual = _SCRAPY_REDIS if isinstance(found, RedisSet) else None
            settings = _settings(bloom, met or usual, has_secret=key is not None, alone=alone)
    warn(f"{read} fingerprints read from {found.title}; all are in the filter")
    if found.num_cut:
        warn(f"{found.num_cut} fingerprints are incomplete, as a killed process leaves them")
    if late:
        warn(f"{late} of them came meanwhile; {_AGAIN}, when the crawl has stopped")
    click.echo("\n".join(settings))
    if visited is not None and met is None:
        warn(
            f"no fingerprint of {visited} is among them: the crawl has not fetched it, or has a "
            "REQUEST_FINGERPRINTER_CLASS of its own, which has to stay"
        )
        return NO
    return 0


def _undo(key: str, name: str, url: str | None) -> int:
    with connected(url) as (client, _):
        record = _crawl_record(client, name)
        from scrapy_ext.migration import put_back  # noqa: PLC0415 - it needs Scrapy

        count = put_back(record, client, key)
    click.echo(f"{count} requests moved to {key}")
    return 0 if count else NO


def _candidates(visited: str | None) -> dict[bytes, str]:
    if visited is None:
        return {}
    try:
        from scrapy_ext.fingerprints import candidates  # noqa: PLC0415 - only here Scrapy is needed
    except ModuleNotFoundError as error:
        raise Failure("--visited needs Scrapy: pip install 'bloomlock[scrapy]'") from error
    try:
        return dict(candidates(visited))
    except ValueError as error:
        raise Failure(f"--visited must be a URL, not {visited!r}: {error}") from error


def _import(
    bloom: BloomFilter, source: RedisSet | SeenFile, candidates: dict[bytes, str]
) -> tuple[int, int, str | None]:
    """Add all fingerprints, then look for each.

    Returns:
        How many there were, how many came meanwhile, and the fingerprinter of the visited page.
    """
    total = late = 0
    met: str | None = None
    with SignalGuard() as guard:
        for is_first in (True, False):
            coming = source.read()
            while batch := list(islice(coming, _BATCH)):
                guard.check()
                missing = batch
                if not is_first:
                    total += len(batch)
                    seen = bloom.exists_many(batch)
                    missing = [one for one, is_in in zip(batch, seen, strict=True) if not is_in]
                    late += len(missing)
                met = met or next((candidates[one] for one in missing if one in candidates), None)
                if missing:
                    bloom.update(missing)
        guard.check()
    return total, late, met


def _settings(
    bloom: BloomFilter, fingerprinter: str | None, *, has_secret: bool, alone: bool
) -> list[str]:
    """Return the lines for settings.py with which a crawl attaches to the filter."""
    values: dict[str, object] = {
        **(_ALONE if alone else {"ADDONS": {"scrapy_ext.BloomlockAddon": 500}}),
        "BLOOMLOCK_NAME": bloom.name.replace("%", "%%"),
        "BLOOMLOCK_CAPACITY": bloom.capacity,
        "BLOOMLOCK_ERROR_RATE": bloom.error_rate,
    }
    if fingerprinter not in {None, _SCRAPY}:
        values["REQUEST_FINGERPRINTER_CLASS"] = fingerprinter
    lines = [f"{name} = {value!r}".replace("'", '"') for name, value in values.items()]
    if has_secret:
        lines.append('BLOOMLOCK_FILTER = {"key": ...}  # the secret of the key file')
    return lines


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
    with connected(url) as (client, _):
        record = _crawl_record(client, name)
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


def _crawl_record(client: Any, name: str) -> CrawlRecord:
    try:
        from scrapy_ext.crawl_state import CrawlRecord  # noqa: PLC0415 - only here it is needed
    except ModuleNotFoundError as error:
        raise Failure("crawls need Scrapy: pip install 'bloomlock[scrapy]'") from error
    return CrawlRecord(client, name)


@contextmanager
def connected(url: str | None, name: str = "--url") -> Iterator[tuple[Any, str]]:
    """Yield a client of the server that a user means, or of its cluster, and where that is."""
    address = find_address(url, name=name)
    times = {"socket_timeout": _SECONDS, "socket_connect_timeout": _SECONDS}
    with explained(address):
        client: Any = redis.Redis.from_url(address.url, **times)
        with suppress(ResponseError):  # INFO is forbidden here
            if client.info("cluster").get("cluster_enabled"):
                client.close()
                client = redis.RedisCluster.from_url(address.url)
    with client:
        yield client, hide_secret(address.url)


class RedisSet:
    """The set of scrapy-redis; it may grow while it is read.

    Attributes:
        title: What it is called in a message.
        most: How many fingerprints it holds at most.
        num_cut: Fingerprints that are incomplete, in what was read last.
    """

    num_cut = 0

    def __init__(self, client: Any, place: str, key: str, *, raw: bool) -> None:
        self.title = f"the set {key!r} at {place}"
        self._client = client
        self._key = os.fsencode(key)
        self._raw = raw
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
                yield member if self._raw else unhexlify(member)
            except ValueError:
                raise Failure(
                    f"{self.title} has the member {member[:80]!r}, which is no hexadecimal "
                    "fingerprint; give --raw if its members are the fingerprints themselves"
                ) from None
        if not self._client.exists(self._key):
            raise Failure(
                f"{self.title} was deleted while it was read; scrapy-redis does that where a crawl "
                "closes without SCHEDULER_PERSIST"
            )


class SeenFile:
    """A file `requests.seen`, or that of a job directory; attributes as RedisSet.

    A process that is killed leaves an incomplete record, and one that goes on with the file writes
    its own right after it. Scrapy 2.19 loses all records from there on; here the next whole one is
    searched. A record that runs into the next one is taken as well: it is that of no request.
    """

    def __init__(self, path: Path) -> None:
        self._path = path / _SEEN if path.is_dir() else path
        self.title = f"the file {self._path}"
        self.num_cut = 0
        data = self._data()
        line = _LINE.match(data, 0, 2 * _LONGEST)
        self.most = len(data) // (len(line[0]) if line else _HEADER + _USUAL)

    def read(self) -> Iterator[bytes]:
        data = self._data()
        record = self._record(data)
        self.num_cut = skipped = 0
        match = record.match(data)
        while match:
            yield match[1] or unhexlify(match[2])
            end = match.end()
            following = record.match(data, end)
            # What follows a record shows whether it is whole.
            if following is None and end < len(data):
                following = record.search(data, match.start() + 1)
                self.num_cut += 1
                skipped += max(0, (following.start() if following else len(data)) - end)
            match = following
        if 2 * skipped > len(data) > _LONGEST:
            raise self._refusal("there is too much in it that is no fingerprint of one length")

    def _data(self) -> mmap.mmap | bytes:
        try:
            with self._path.open("rb") as file:
                if not os.fstat(file.fileno()).st_size:
                    return b""
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise Failure(f"cannot read {self._path}: {error.strerror}") from error

    def _record(self, data: mmap.mmap | bytes) -> re.Pattern[bytes]:
        # The first shows how long all of them are.
        first = _LINE.match(data)
        length = len(first[1]) // 2 if first else int.from_bytes(data[:_HEADER], "big")
        header = re.escape(length.to_bytes(_HEADER, "big")) if length <= _LONGEST else b""
        record = re.compile(
            rb"%b(.{%d})|([0-9a-f]{%d})\r?\n" % (header, length, 2 * length), re.DOTALL
        )
        if not 0 < length <= _LONGEST or not record.match(data):
            raise self._refusal("it does not begin with a fingerprint")
        return record

    def _refusal(self, why: str) -> Failure:
        return Failure(f"{self._path} is no {_SEEN} of Scrapy: {why}")
