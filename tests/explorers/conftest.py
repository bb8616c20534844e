"""What the explorers of filters share."""

from __future__ import annotations

import pytest
from set_world import SetWorld


@pytest.fixture
def make_world(r):
    """Return what makes a world of a filter on the tests' server."""
    return lambda shape, **options: SetWorld(r, shape, **options)


@pytest.fixture
def is_long(request):
    """Whether to visit all there is."""
    return request.config.getoption("--long")
