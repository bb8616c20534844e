"""The contract of filters on every backend: strategies, kinds, faces and servers."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import servers
from contract.filter_contract import FilterContract
from contract.filter_kinds import AsyncContract, GrowthContract, WindowContract
from moved_clock import stopped_server


@pytest.fixture(scope="module")
def nodes():
    """Three masters of one cluster."""
    with servers.cluster(node_timeout_ms=60_000) as made:
        yield made


@pytest.fixture
def cluster_client(nodes):
    with servers.emptied(nodes) as client:
        yield client


@pytest.fixture(scope="module")
def clocked_server(tmp_path_factory):
    """Gives, by its kind, a server whose clock a test sets."""
    started = {}
    with ExitStack() as stack:

        def find(kind):
            if kind not in started:
                folder = tmp_path_factory.mktemp("clock")
                started[kind] = stack.enter_context(stopped_server(kind, folder))
            return started[kind]

        yield find


class TestAtomic(FilterContract):
    backend = "atomic"


class TestLua(FilterContract):
    backend = "lua"


class TestTransaction(FilterContract):
    backend = "transaction"


class TestPipeline(FilterContract):
    backend = "pipeline"


class TestLock(FilterContract):
    backend = "lock"


class TestNative(FilterContract):
    backend = "native"


class TestWindow(WindowContract, FilterContract):
    backend = "window"


class TestGrowth(GrowthContract, FilterContract):
    backend = "growth"


class TestDiscards(FilterContract):
    backend = "discards"


class TestMemory(FilterContract):
    backend = "memory"


class TestAsyncio(AsyncContract, FilterContract):
    backend = "asyncio"


class TestAsyncioWindow(AsyncContract, WindowContract, FilterContract):
    backend = "asyncio window"


class TestCluster(FilterContract):
    backend = "cluster"


class TestOldest(FilterContract):
    backend = "oldest"


class TestNewest(FilterContract):
    backend = "newest"
