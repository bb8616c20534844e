"""What the explorers of filters share."""

from __future__ import annotations

import pytest
import redis
from set_world import SetWorld


@pytest.fixture(scope="module")
def make_world(all_servers):
    """Gives a world of a shape, which all tests of a file have."""
    made = {}
    with redis.Redis.from_url(all_servers.url("valkey", bloom=False)) as client:

        def make(shape, **options):
            case = str((shape, options))
            if case not in made:
                made[case] = SetWorld(client, shape, **options)
            return made[case]

        yield make


@pytest.fixture
def is_long(request):
    return request.config.getoption("--long")
