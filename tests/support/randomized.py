"""What the randomized models share: whoever sees one fail can repeat it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def naming(round_: object) -> Iterator[None]:
    """Name a round, with its seed, in an error that comes out of it."""
    try:
        yield
    except BaseException as error:
        error.add_note(str(round_))
        raise
