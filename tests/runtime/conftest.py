"""One cluster for all tests of this folder: it takes seconds to start."""

from __future__ import annotations

import pytest
import servers


@pytest.fixture(scope="session")
def nodes():
    """Three masters that own a third of the slots each."""
    with servers.cluster(60_000, servers.with_bloom()) as clients:
        yield clients


@pytest.fixture
def cluster(nodes):
    with servers.emptied(nodes) as made:
        yield made
