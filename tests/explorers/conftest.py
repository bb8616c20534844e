"""What the explorers of filters share."""

from __future__ import annotations

import pytest
from moved_clock import stopped_server
from set_world import HandClocks, SetWorld


@pytest.fixture
def make_world(r):
    """Return what makes a world of a filter on the tests' server."""
    return lambda shape, **options: SetWorld(r, shape, **options)


@pytest.fixture(scope="session")
def stopped(tmp_path_factory):
    """Return a client of a server whose clock stands still, and what sets that clock."""
    with stopped_server("valkey", tmp_path_factory.mktemp("stopped")) as (client, stop_at, _url):
        yield client, HandClocks(stop_at)


@pytest.fixture
def is_long(request):
    """Whether to visit all there is."""
    return request.config.getoption("--long")
