"""Fingerprints of requests, as Scrapy and scrapy-redis store them.

scrapy-redis keeps a set of hexadecimal digits. Scrapy keeps a file `requests.seen`: until 2.18 each
fingerprint is a line of hexadecimal digits, from 2.19 on its length in two bytes and then itself.
A job directory that was used with both versions has a file with both.
"""

from __future__ import annotations

import mmap
import os
import re
from binascii import unhexlify
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import ResponseError

from bloomlock.server import explained, find_address, hide_secret

from .errors import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SCANNED = 2_000
"""Members in one SSCAN, for which the server takes about a millisecond."""
_SECONDS = 10.0
_HEADER, _USUAL, _LONGEST = 2, 20, 4096
"""Bytes of a length, and of fingerprints."""
_LINE = re.compile(rb"([0-9a-f]{2,})\r?\n")
_SEEN = "requests.seen"


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
