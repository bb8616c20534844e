"""The errors of bloomlock by themselves."""

from __future__ import annotations

import pytest
import redis

import bloomlock
from bloomlock.errors import batch_error

ERRORS = [name for name in bloomlock.__all__ if name.endswith("Error")]


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_shows_its_message(name):
    kind = getattr(bloomlock, name)
    assert repr(kind("what went wrong")) == f"{name}('what went wrong')"
    assert str(kind("what went wrong")) == "what went wrong"


def test_the_error_of_a_batch_shows_its_message():
    made = batch_error(redis.ConnectionError("it is gone"), [True])
    assert isinstance(made, redis.ConnectionError)
    assert "('it is gone')" in repr(made)
