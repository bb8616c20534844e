"""The other systems, each a private server; without their clients these tests are skipped."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if all(map(find_spec, ("kazoo", "etcd3gw", "psycopg", "psycopg_pool"))):
    from foreign import programs
    from foreign.sql_lock import create_table
    from psycopg_pool import ConnectionPool

SYSTEMS = ("zookeeper", "etcd", "sql")


@pytest.fixture(scope="session")
def zookeeper():
    """host:port of a ZooKeeper."""
    with programs.zookeeper() as (address, version):
        print(f"ZooKeeper {version}")
        yield address


@pytest.fixture(scope="session")
def etcd():
    """Port of an etcd."""
    with programs.etcd() as (port, version):
        print(f"etcd {version}")
        yield port


@pytest.fixture(scope="session")
def sql():
    """Connection string of a PostgreSQL that has the table of locks."""
    with programs.postgresql() as (dsn, version):
        print(f"PostgreSQL {version}")
        with ConnectionPool(dsn, min_size=1) as pool:
            create_table(pool)
        yield dsn


@pytest.fixture(params=SYSTEMS)
def system(request):
    """One system after the other: its name, and where it is."""
    return request.param, request.getfixturevalue(request.param)
