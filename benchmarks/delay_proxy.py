"""A proxy that makes the way to a server longer: `python -m benchmarks.delay_proxy URL SOCKET MS`.

What is read is written MS milliseconds later, in both directions and without holding back
what comes after it: a longer wire, not a thinner one. It is a process of its own, so that it takes
nothing from the client's.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from .place import connect, parse_url

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
CHUNK = 1 << 18
ON_THE_WAY = 4096
"""Chunks in one direction at a time: more than ever are, and an end to memory."""
PINGS = 200
TRIES = 3


@contextmanager
def delayed(url: str, round_trip_ms: float) -> Iterator[str]:
    """Provide a URL from which a round trip to the server takes so long.

    The proxy itself takes a good tenth of a millisecond, and sleeps longer than it should: the
    delay is found by trying.
    """
    if not round_trip_ms:
        yield url
        return
    delay_ms = 0.0
    for _ in range(TRIES):
        with _process(url, delay_ms) as through:
            delay_ms = max(0.0, delay_ms + (round_trip_ms - _round_trip_ms(through)) / 2)
    with _process(url, delay_ms) as through:
        yield through


@contextmanager
def _process(url: str, delay_ms: float) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="bloomlock-") as folder:
        path = Path(folder) / "proxy.sock"
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.delay_proxy", url, str(path), str(delay_ms)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        try:
            if process.stdout is None or not process.stdout.readline():
                raise RuntimeError(f"the delaying proxy ended with status {process.wait()}")
            yield f"unix://{path}"
        finally:
            process.kill()
            process.communicate()


def _round_trip_ms(url: str) -> float:
    times = []
    with connect(url) as client:
        for _ in range(PINGS):
            start = perf_counter()
            client.ping()
            times.append(perf_counter() - start)
    return median(times) * 1e3


async def _serve(url: str, path: str, delay_ms: float) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await _connect(url)
        await asyncio.gather(
            _carry(reader, back, delay_ms / 1e3), _carry(there, writer, delay_ms / 1e3)
        )

    server = await asyncio.start_unix_server(accept, path, limit=CHUNK)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await server.serve_forever()


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    options = parse_url(url)
    if "path" in options:
        return await asyncio.open_unix_connection(options["path"], limit=CHUNK)
    host, port = options.get("host", "localhost"), options.get("port", 6379)
    return await asyncio.open_connection(host, port, limit=CHUNK)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """Carry one direction to its end."""
    loop = asyncio.get_running_loop()
    on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(ON_THE_WAY)

    async def write() -> None:
        while True:
            due, data = await on_the_way.get()
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            if not data:
                return
            writer.write(data)
            await writer.drain()

    writing = asyncio.create_task(write())
    data = b"unread"
    while data:
        try:
            data = await reader.read(CHUNK)
        except OSError:
            data = b""
        await on_the_way.put((loop.time() + delay, data))
    with contextlib.suppress(OSError):
        await writing
    writer.close()


def main() -> None:
    """Serve until standard input ends, with the process that holds its other end."""
    url, path, delay_ms = sys.argv[1:]
    # Not epoll, which the event loop asks in whole milliseconds.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    serving = loop.create_task(_serve(url, path, float(delay_ms)))
    loop.add_reader(sys.stdin.fileno(), serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(serving)


if __name__ == "__main__":
    main()
