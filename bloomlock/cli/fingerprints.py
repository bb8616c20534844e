"""Fingerprints of requests, as Scrapy and scrapy-redis store them.

scrapy-redis keeps a set of hexadecimal digits. Scrapy keeps a file `requests.seen`: until 2.18 each
fingerprint is a line of hexadecimal digits, from 2.19 on its length in two bytes and then itself.
A job directory that was used with both versions has a file with both.
"""

from __future__ import annotations

import os
import re
from binascii import unhexlify
from pathlib import Path
from typing import TYPE_CHECKING, cast

import redis
from redis.exceptions import RedisError, ResponseError

from bloomlock.server import explained, find_address, hide_secret

from .errors import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SCANNED = 2_000
"""Members in one SSCAN, for which the server takes about a millisecond."""
_SECONDS = 10.0
_BLOCK_BYTES = 2**20
_HEADER = 2
_USUAL = 20
_LONGEST = 4096
"""Bytes of a fingerprint."""
_LINE = re.compile(rb"([0-9a-f]{2,})\r?\n")
_SEEN = "requests.seen"


def open_source(source: str, url: str | None, *, raw: bool) -> RedisSet | SeenFile:
    """Return the file or the set that a user means; a path that is there is a file."""
    path = Path(source)
    if os.sep in source or path.exists():
        return SeenFile(path)
    return RedisSet(source, url, raw=raw)


class RedisSet:
    """The set of scrapy-redis; it may grow while it is read.

    Attributes:
        title: What it is called in a message.
        size: Its size, in the units that `read` reports.
        most: How many fingerprints it holds at most.
        cut: Fingerprints that are incomplete, in what was read last.
    """

    cut = 0

    def __init__(self, key: str, url: str | None, *, raw: bool) -> None:
        address = find_address(url, name="--from")
        self.title = f"the set {key!r} at {hide_secret(address.url)}"
        self._key = os.fsencode(key)
        self._raw = raw
        with explained(address):
            self._client = connect(address.url)
            kind = cast("bytes", self._client.type(self._key)).decode()
        if kind == "none":
            raise Failure(f"there is no file and no key {key!r} at {hide_secret(address.url)}")
        if kind != "set":
            raise Failure(f"{key!r} is a {kind} in Redis, not a set as of scrapy-redis")
        self.size = self.most = self._client.scard(self._key)

    def read(self, on_read: Callable[[int], None]) -> Iterator[list[bytes]]:
        """Yield the fingerprints of all members that are there during the whole reading."""
        cursor: int = 0
        while True:
            cursor, reply = self._client.sscan(self._key, cursor, count=_SCANNED)
            members = cast("list[bytes]", reply)
            on_read(len(members))
            yield members if self._raw else [self._from_hex(member) for member in members]
            if not int(cursor):
                break
        if not self._client.exists(self._key):
            raise Failure(
                f"{self.title} was deleted while it was read; scrapy-redis does that where a crawl "
                "closes without SCHEDULER_PERSIST"
            )

    def _from_hex(self, member: bytes) -> bytes:
        try:
            return unhexlify(member)
        except ValueError:
            raise Failure(
                f"{self.title} has the member {member[:80]!r}, which is no hexadecimal "
                "fingerprint; give --raw if its members are the fingerprints themselves"
            ) from None


def connect(url: str) -> redis.Redis | redis.RedisCluster:
    """Return a client of a server, or of its cluster."""
    client = redis.Redis.from_url(url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS)
    try:
        is_cluster = bool(client.info("cluster").get("cluster_enabled"))
    except ResponseError:
        is_cluster = False  # INFO is forbidden here
    except RedisError:
        client.close()
        raise
    if not is_cluster:
        return client
    client.close()
    return redis.RedisCluster.from_url(url)


class SeenFile:
    """A file `requests.seen`, or that of a job directory; attributes as RedisSet."""

    def __init__(self, path: Path) -> None:
        self._path = path / _SEEN if path.is_dir() else path
        self.title = f"the file {self._path}"
        self.cut = 0
        try:
            self.size = self._path.stat().st_size
            with self._path.open("rb") as file:
                line = _LINE.match(file.read(2 * _LONGEST))
        except OSError as error:
            raise Failure(f"cannot read {self._path}: {error.strerror}") from error
        self.most = self.size // (len(line[0]) if line else _HEADER + _USUAL)

    def read(self, on_read: Callable[[int], None]) -> Iterator[list[bytes]]:
        """Yield the fingerprints that the file holds."""
        parser = SeenParser()
        try:
            with self._path.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    yield parser.split(block)
                    on_read(len(block))
            yield parser.split(b"", last=True)
        except OSError as error:
            raise Failure(f"cannot read {self._path}: {error.strerror}") from error
        except NotSeenError as error:
            raise Failure(f"{self._path} is no {_SEEN} of Scrapy: {error}") from error
        self.cut = parser.cut


class NotSeenError(Exception):
    """What stands in a file is no fingerprint."""


class SeenParser:
    r"""Splits the content of a `requests.seen` into fingerprints.

    A process that is killed leaves an incomplete record, and one that goes on with the file writes
    its own right after it. Scrapy 2.19 loses all records from there on; here the next whole one is
    searched. A record that runs into the next one is taken as well: it is that of no request.

    Attributes:
        cut: Places so far where a record is incomplete.

    >>> parser = SeenParser()
    >>> parser.split(b"ab12\n\0\2xyzab12\n\0\2pq\0\2p"), parser.split(b"", last=True), parser.cut
    ([], [b'\xab\x12', b'xy', b'\xab\x12', b'pq'], 2)
    """

    def __init__(self) -> None:
        self.cut = 0
        self._data = b""
        self._pattern: re.Pattern[bytes] | None = None
        self._longest = _LONGEST
        self._size = 0
        self._skipped = 0

    def split(self, block: bytes, *, last: bool = False) -> list[bytes]:
        """Return the fingerprints that a block completes; those at its end come with the next.

        Raises:
            NotSeenError: This is no such file, or its fingerprints have several lengths.
        """
        data = self._data = self._data + block
        self._size += len(block)
        # What follows a record shows whether it is whole.
        end = len(data) - (0 if last else 2 * self._longest)
        if end <= 0:
            return []
        if self._pattern is None:
            self._begin(data)
            return self.split(b"", last=last)
        found: list[bytes] = []
        position = 0
        match = self._pattern.match(data)
        while position < end:
            if match is None:
                match = self._pattern.search(data, position)
                self.cut += 1
                self._skipped += (end if match is None else match.start()) - position
                if match is None:
                    position = end
                    break
            found.append(match[1] or unhexlify(match[2]))
            position = match.end()
            after = self._pattern.match(data, position)
            if after is None and position < len(data):
                position = match.start() + 1
            match = after
        self._data = data[position:]
        if 2 * self._skipped > self._size > _LONGEST:
            raise NotSeenError("there is too much in it that is no fingerprint of one length")
        return found

    def _begin(self, data: bytes) -> None:
        """Learn from the first record how long all of them are."""
        first = _LINE.match(data)
        length = len(first[1]) // 2 if first else int.from_bytes(data[:_HEADER], "big")
        header = length.to_bytes(_HEADER, "big")
        self._longest = 2 * length + 2
        self._pattern = re.compile(
            rb"%b(.{%d})|([0-9a-f]{%d})\r?\n" % (re.escape(header), length, 2 * length), re.DOTALL
        )
        if not 0 < length <= _LONGEST or not self._pattern.match(data):
            raise NotSeenError("it does not begin with a fingerprint")
