"""Private servers of the other systems: own directory, loopback, a free port, ended by pid.

Each is a Debian package: `zookeeper`, `etcd-server`, `postgresql` (no service has to run).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from etcd3gw.client import Etcd3Client
from etcd3gw.exceptions import Etcd3Exception
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PATIENCE = 60.0
_ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _program(name: str, *directories: Path) -> str:
    found = shutil.which(
        name, path=os.pathsep.join((os.environ["PATH"], *map(str, directories)))
    ) or pytest.skip(f"this machine has no {name}")
    return str(found)


@contextlib.contextmanager
def _directory(owner: str | None = None) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="foreign-"))
    try:
        if owner is not None:
            shutil.chown(path, owner)
        yield path
    finally:
        shutil.rmtree(path)


@contextlib.contextmanager
def _running(
    command: Sequence[str],
    directory: Path,
    version: Callable[[], str],
    stop: signal.Signals = signal.SIGTERM,
    **options: Any,
) -> Iterator[str]:
    """Run a server until the context ends; yields what `version` says once it answers."""
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=directory, **options
        )
    try:
        yield _answered(process, version, log)
    finally:
        process.send_signal(stop)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answered(process: subprocess.Popen[bytes], version: Callable[[], str], log: Path) -> str:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return version()
        except (OSError, psycopg.Error, Etcd3Exception, KazooException, KazooTimeoutError):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the server did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)


@contextlib.contextmanager
def zookeeper() -> Iterator[tuple[str, str]]:
    """Yield host:port of a private ZooKeeper, and its version."""
    java = _program("java")
    if not _ZOOKEEPER_JAR.exists():
        pytest.skip("this machine has no zookeeper")
    address = f"127.0.0.1:{(port := _free_port())}"
    with _directory() as directory:
        config = directory / "zoo.cfg"
        # The shortest session is two ticks: what a killed holder keeps others waiting.
        config.write_text(
            f"dataDir={directory / 'data'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            "tickTime=500\nmaxClientCnxns=0\nadmin.enableServer=false\n"
            "4lw.commands.whitelist=envi,srvr\n"
        )
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        command = [java, "-Xmx128m", "-cp", str(_ZOOKEEPER_JAR), main, str(config)]
        with _running(command, directory, lambda: _zookeeper_version(address)) as version:
            yield address, version


def _zookeeper_version(address: str) -> str:
    client = KazooClient(address)
    try:
        client.start(timeout=PATIENCE)
        return ".".join(map(str, client.server_version()))
    finally:
        client.stop()
        client.close()


@contextlib.contextmanager
def etcd() -> Iterator[tuple[int, str]]:
    """Yield the client port of a private etcd on 127.0.0.1, and its version."""
    program = _program("etcd")
    port, peer = _free_port(), f"http://127.0.0.1:{_free_port()}"
    address = f"http://127.0.0.1:{port}"
    with _directory() as directory:
        command = [
            *(program, "--data-dir", str(directory / "data")),
            *("--listen-client-urls", address, "--advertise-client-urls", address),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        ]
        client = Etcd3Client("127.0.0.1", port, timeout=PATIENCE)
        with _running(command, directory, lambda: str(client.status()["version"])) as version:
            yield port, version


@contextlib.contextmanager
def postgresql() -> Iterator[tuple[str, str]]:
    """Yield a connection string of a private PostgreSQL, and its version."""
    newest = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name)
    initdb, program = (_program(name, *newest[::-1]) for name in ("initdb", "postgres"))
    # It refuses to run as root; the package made a user for it.
    owner = "postgres" if os.geteuid() == 0 else None
    options: dict[str, Any] = {"user": owner, "group": owner, "extra_groups": []} if owner else {}
    dsn = f"host=127.0.0.1 port={(port := _free_port())} user=foreign dbname=postgres"
    with _directory(owner) as directory:
        data = str(directory / "data")
        subprocess.run(
            [initdb, "-D", data, "-A", "trust", "-U", "foreign", "--no-sync"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=directory,
            **options,
        )
        command = [
            *(program, "-D", data, "-p", str(port), "-c", "fsync=off"),
            *("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="),
        ]
        version = lambda: _postgresql_version(dsn)  # noqa: E731 - an argument, named for its length
        # SIGINT: end without waiting for clients to leave.
        with _running(command, directory, version, signal.SIGINT, **options) as answer:
            yield dsn, answer


def _postgresql_version(dsn: str) -> str:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SHOW server_version").fetchone()
        return str(row and row[0])
