"""What hash functions cost: bits an item and server time an item, for each k.

Fewer hash functions than the optimum take more memory and less of the server's time, which is what
a server that many clients share runs out of first. Each row is a filter in which items are added
by 50 connections that wait for their replies, so the time is that of the whole call: system calls,
the command's parsing and its bits. It is the server's processor time by its own counter, as a
ratio to SADD of the same items in the same repetition. The last column is bits an item times that
ratio: what an item takes of a server, of which the least is best.
"""

from __future__ import annotations

import os
import random
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks import show
from benchmarks.figures import ratios
from benchmarks.place import Meter, connect, open_socket
from benchmarks.workloads import fingerprints
from bloomlock import MemoryBloomFilter

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from benchmarks.options import Options

ABOUT = "hash functions: bits and server time for each number"
CAPACITY = 1_000_000
CONNECTIONS = 50
ROUNDS = 100
FIRST_BIT = 192
HASHES = {
    1e-3: (2, 3, 4, 5, 6, 8),
    1e-6: (4, 5, 6, 7, 8, 9, 10, 12, 16),
    1e-9: (6, 7, 8, 9, 10, 12, 14, 18, 24),
}
SADD = "SADD"


@dataclass(slots=True)
class Row:
    """One filter, or the set.

    Attributes:
        title: What it is.
        error_rate: Its rate; None for the set.
        num_hashes: k.
        bits: Bits an item.
        micros: Server time of an add in microseconds, one for each repetition.
    """

    title: str
    error_rate: float | None = None
    num_hashes: int = 0
    bits: float = 0.0
    micros: list[float] = field(default_factory=list)


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure every k; return what was measured as plain data."""
    rounds = max(1, (options.items or ROUNDS * CONNECTIONS) // CONNECTIONS)
    items = [item.encode() for item in fingerprints("hashes", rounds * CONNECTIONS)]
    cases = [Row(SADD)]
    for rate, numbers in HASHES.items():
        cases += [
            Row(f"{rate:g}, k = {k}", rate, k)
            for k in (numbers[1::3] if options.quick else numbers)
        ]
    slices = options.slices(7, 3)
    with (
        connect(url) as client,
        show.progress(slices * len(cases)) as step,
        ExitStack() as stack,
    ):
        sockets = [stack.enter_context(open_socket(url)) for _ in range(CONNECTIONS)]
        meter = Meter(client)
        for _ in range(slices):
            for row in cases:
                step(row.title)
                key = f"{prefix}hashes"
                commands = _prepare(client, key, row, items)
                meter.start()
                _exchange(sockets, commands)
                row.micros.append(round(1e6 * meter.stop().busy / len(items), 3))
                client.unlink(key)
    return {"missing": [], "rows": [asdict(row) for row in cases]}


def _prepare(client: Any, key: str, row: Row, items: Sequence[bytes]) -> list[bytes]:
    """Make the key, at its whole size; return the command of each item."""
    if row.error_rate is None:
        return [_command(b"SADD", key.encode(), item) for item in items]
    shape = MemoryBloomFilter(CAPACITY, row.error_rate, num_hashes=row.num_hashes, shards=1)
    row.bits = round(shape.num_bits / CAPACITY, 2)
    client.set(key, os.urandom(FIRST_BIT // 8 + shape.num_bits // 8 + 1))
    chance = random.Random(key)
    return [_bitfield(key, _offsets(chance, shape, row)) for _ in items]


def _offsets(chance: random.Random, shape: MemoryBloomFilter, row: Row) -> list[int]:
    """Return the bits of an item that is as good as any."""
    return [FIRST_BIT + chance.randrange(shape.num_bits) for _ in range(row.num_hashes)]


def _bitfield(key: str, offsets: Sequence[int]) -> bytes:
    """Return the command of an add: the header read, and each bit tested and set."""
    bits = [part for offset in offsets for part in (b"SET", b"u1", b"%d" % offset, b"1")]
    return _command(b"BITFIELD", key.encode(), b"GET", b"i64", b"0", *bits)


def _command(*parts: bytes) -> bytes:
    return b"".join([b"*%d\r\n" % len(parts), *(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)])


def _exchange(sockets: Sequence[socket.socket], commands: Sequence[bytes]) -> None:
    for start in range(0, len(commands), len(sockets)):
        for one, command in zip(sockets, commands[start:], strict=False):
            one.sendall(command)
        for one in sockets:
            if one.recv(4096)[:1] == b"-":
                raise ValueError("the server refused a command")


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make a table for each rate."""
    rows = [Row(**row) for row in result["rows"]]
    base = rows[0]
    columns = ["", "bits/item", "server µs/add", "of SADD", "bits x ratio"]
    for rate in HASHES:
        lines = [_line(row, base) for row in rows if row.error_rate in (None, rate)]
        yield show.table(f"hash functions at {rate:g}", columns, lines)


def _line(row: Row, base: Row) -> list[str]:
    found = ratios(row.micros, base.micros)
    middle = sorted(row.micros)[len(row.micros) // 2]
    if row is base:
        return [row.title, "", f"{middle:.2f}", "1", ""]
    product = f"{row.bits * found.median:.1f}"
    return [row.title, f"{row.bits:.1f}", f"{middle:.2f}", show.ratio(found), product]
