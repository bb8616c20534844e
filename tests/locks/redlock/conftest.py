"""Independent servers, several at a time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from several import Several

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="package")
def _three() -> Iterator[Several]:
    with contextlib.ExitStack() as stack:
        yield Several(stack, 3)


@pytest.fixture(autouse=True)
def _pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bloomlock.locks.redlock.PAUSES", (0.001, 0.02))


@pytest.fixture
def three(_three: Several) -> Iterator[Several]:
    """Three empty servers; those that a test kills or stops run again for the next one."""
    _three.renew()
    yield _three
    _three.resume()
