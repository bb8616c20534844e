"""An encrypted connection: requests write to its socket and read from it as they do without TLS.

The server may be built without TLS, so a proxy of Python's `ssl` stands in front of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import ssl
import subprocess
from urllib.parse import urlsplit

import pytest
import redis
from people import Loop
from redis.backoff import NoBackoff
from redis.connection import SSLConnection
from redis.retry import Retry

from bloomlock import BloomFilter, Lock
from bloomlock.runtime import redispy
from bloomlock.runtime._sync.driver import Driver

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None and "CI" not in os.environ, reason="makes the certificate"
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-out", str(paths[0]), "-keyout", str(paths[1]))
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return paths


class Proxy(Loop):
    """Takes the encryption off what goes to a server; `accepted` counts its connections."""

    def __init__(self, url, certificate):
        self._path, self._certificate = urlsplit(url).path, certificate
        self._tasks = set()
        self.accepted = 0

    def __enter__(self):
        super().__enter__()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._certificate)
        self._server = self.run(asyncio.start_server(self._pass_on, "127.0.0.1", 0, ssl=context))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *error):
        self.run(self._end())
        super().__exit__(*error)

    async def _end(self):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass_on(self, reader, writer):
        self.accepted += 1
        self._tasks.add(asyncio.current_task())
        theirs, ours = await asyncio.open_unix_connection(self._path)
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pump(reader, ours), self._pump(theirs, writer))

    async def _pump(self, reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


@needs_openssl
def test_requests_over_tls(valkey, certificate):
    with redis.Redis.from_url(valkey) as direct:
        direct.flushall()
    with Proxy(valkey, certificate) as proxy:
        client = redis.Redis(
            host="127.0.0.1", port=proxy.port, ssl=True, ssl_ca_certs=str(certificate[0])
        )
        made = BloomFilter("x", 100_000, client=client)
        accepted = proxy.accepted
        assert [made.add(item) for item in ("a", "b", "a")] == [True, True, False]
        assert made.exists("b")
        assert not made.exists("c")
        [(connection, _, _)] = Driver.of(client)._idle
        assert type(connection) is SSLConnection
        assert type(connection) in redispy.OWN_CLASSES
        # Answers of many records of TLS, and one of them received past the parser.
        items = [str(number) for number in range(5000)]
        assert made.add_many(items, route="bitmap") == [True] * 5000
        assert made.add_many(items, route="items") == [False] * 5000
        with Lock("job", client=client):
            assert not made.add("a")
        assert proxy.accepted == accepted, "one connection serves all of them"
        client.close()


@needs_openssl
def test_an_unknown_certificate_is_refused(valkey, certificate):
    with Proxy(valkey, certificate) as proxy:
        once = Retry(NoBackoff(), 0)
        client = redis.Redis(host="127.0.0.1", port=proxy.port, ssl=True, retry=once)
        with pytest.raises(redis.ConnectionError, match=r"(?i)certificate"):
            BloomFilter("x", 1000, client=client)
        client.close()
