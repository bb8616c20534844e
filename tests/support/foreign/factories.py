"""The factories that `LockStrategy` is given: name -> context manager, one per process.

Each notices at the end that its lock was lost and says so by an exception; the add is then
answered with "not known", never with a second "new".
"""

from __future__ import annotations

import base64
import contextlib
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

from etcd3gw.client import Etcd3Client
from etcd3gw.exceptions import Etcd3Exception
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError, SessionExpiredError
from psycopg_pool import ConnectionPool

from foreign.sql_lock import SqlLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from etcd3gw.lease import Lease

    Factory: TypeAlias = Callable[[str], contextlib.AbstractContextManager[object]]

SESSION = 2.0
"""Seconds after which a killed holder's ZooKeeper session or etcd lease is over in the tests."""


@contextlib.contextmanager
def zookeeper_lock(client: KazooClient, name: str, timeout: float = 30.0) -> Iterator[None]:
    """Hold kazoo's lock; raises if the session it belonged to ended meanwhile."""
    path = "/bloomlock/" + quote(name, safe="")  # a slash would make a path of it
    session = client.client_id
    lock = client.Lock(path)
    try:
        lock.acquire(timeout=timeout)
    except BaseException:
        # kazoo tidies up after its own errors, but not after a KeyboardInterrupt: the node would
        # stay in the queue, and be granted the lock, as long as this process lives.
        with contextlib.suppress(NoNodeError):
            for node in client.get_children(path):
                if node.startswith(lock.prefix):
                    client.delete(f"{path}/{node}")
        raise
    try:
        yield
    except BaseException:
        with contextlib.suppress(KazooException):
            lock.release()
        raise
    lock.release()
    if client.client_id != session:
        raise SessionExpiredError(f"the lock {name!r} was lost with its session")


class EtcdLockLostError(RuntimeError):
    """The lease was gone, or its end is not known: another client may have worked as well."""


def _wait_in_queue(client: Etcd3Client, name: str, lease: Lease) -> None:
    body = {"name": base64.b64encode(name.encode()).decode(), "lease": lease.id}
    client.post(client.get_url("/lock/lock"), json=body)
    # The service hands the lock also to a waiter whose lease ended while it waited.
    if lease.refresh() <= 0:
        raise EtcdLockLostError(f"the lease ended before the lock {name!r} was obtained")


@contextlib.contextmanager
def etcd_lock(client: Etcd3Client, name: str, ttl: int) -> Iterator[None]:
    """Hold a lock of etcd's lock service; raises if its lease ended meanwhile.

    The client's timeout bounds the wait. `client.lock()` is not used: its `with` goes on when
    another client holds the lock.
    """
    lease = client.lease(ttl)
    try:
        _wait_in_queue(client, name, lease)
        yield
    except BaseException:
        with contextlib.suppress(Etcd3Exception):
            lease.revoke()
        raise
    try:
        lease.revoke()  # its keys go with it
    except Etcd3Exception as error:
        raise EtcdLockLostError(f"the lease of the lock {name!r} may have ended early") from error


@contextlib.contextmanager
def open_factory(system: str, address: str | int | None, ttl: float = 30.0) -> Iterator[Factory]:
    """Give the factory of a system, with connections of its own.

    Args:
        system: "zookeeper", "etcd", "sql", or "none": no lock at all, for the controls.
        address: What the fixture of that name gives.
        ttl: Seconds of an etcd or SQL lease.
    """
    if system == "none":
        yield lambda _name: contextlib.nullcontext()
    elif system == "zookeeper":
        client = KazooClient(address, timeout=SESSION)
        client.start(timeout=60)
        try:
            yield lambda name: zookeeper_lock(client, name)
        finally:
            client.stop()
            client.close()
    elif system == "etcd":
        gateway = Etcd3Client("127.0.0.1", address, timeout=30)
        with gateway.session:
            yield lambda name: etcd_lock(gateway, name, int(ttl))
    else:
        with ConnectionPool(
            str(address), min_size=1, max_size=2, kwargs={"autocommit": True}
        ) as pool:
            yield lambda name: SqlLock(pool, name, ttl)
