"""The mark of a test that needs a feature of its backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F")


def needs(*features: str) -> Callable[[F], F]:
    """Run a test only on backends that have these features, by the table REFUSES."""

    def mark(test: F) -> F:
        test.needs = set(features)  # type: ignore[attr-defined]
        return test

    return mark
