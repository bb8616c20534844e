"""One cluster for all tests of this folder: it takes seconds to start."""

from __future__ import annotations

import pytest
import servers


@pytest.fixture(scope="session")
def nodes():
    """Three masters that own a third of the slots each, with BF.* where the machine has it."""
    more = servers.with_bloom() if servers.bloom_module() else {}
    with servers.cluster(60_000, more) as clients:
        yield clients


@pytest.fixture
def cluster(nodes, has_bloom):
    if has_bloom:
        servers.with_bloom()
    with servers.emptied(nodes) as made:
        yield made
