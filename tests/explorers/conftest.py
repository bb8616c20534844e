"""What the explorers of filters share."""

from __future__ import annotations

import pytest
from set_world import SetWorld


@pytest.fixture
def make_world(r):
    return lambda shape, **options: SetWorld(r, shape, **options)


@pytest.fixture
def is_long(request):
    return request.config.getoption("--long")
