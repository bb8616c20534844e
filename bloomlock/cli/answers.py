"""Ask a filter about a batch of lines, keeping what is known when something goes wrong.

No line may be lost: one that the server may have marked as seen counts as new if the answer did
not arrive, for nobody else will ever be told that it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import RedisError

from bloomlock import (
    BloomlockError,
    CapacityError,
    FilterLostError,
    OutcomeUnknownError,
    PartialResultError,
)

from .failures import warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock import BloomFilter, MemoryBloomFilter


class Answers(NamedTuple):
    """What is known about the lines of one batch.

    Attributes:
        new: For each line whether it is new, None if it was not marked as seen at all; lines past
            its end neither.
        error: What stopped the batch; to be raised when the new lines are in safety.
    """

    new: Sequence[bool | None]
    error: Exception | None = None


def add_lines_in_memory(bloom: MemoryBloomFilter, lines: Sequence[bytes]) -> Answers:
    """Add lines to a filter in this process; that it is full is returned, not raised."""
    try:
        return Answers(bloom.add_many(lines))
    except CapacityError as error:
        return Answers(error.results, error)


def add_lines(bloom: BloomFilter, lines: Sequence[bytes]) -> Answers:
    """Add lines; errors are returned, not raised."""
    new: list[bool | None] = []
    while len(new) < len(lines):
        try:
            new += bloom.add_many(lines[len(new) :])
        except OutcomeUnknownError as error:
            asked = lines[len(new) :]
            new += _unknown_is_new(error.results)
            unknown = [
                line for line, known in zip(asked, error.results, strict=False) if known is None
            ]
            if failure := _mark(bloom, unknown, error):
                return Answers(new, failure)
        except FilterLostError as error:
            # They may have been the first of the generation that follows.
            return Answers(new + _unknown_is_new(error.results), error)
        except PartialResultError as error:
            return Answers(new + error.results, error)
        except (BloomlockError, RedisError, OSError) as error:
            return Answers(new, error)
    return Answers(new)


def _mark(bloom: BloomFilter, unknown: list[bytes], error: Exception) -> Exception | None:
    """Mark lines that will be written whatever the answer, so that nobody gets them once more.

    Returns why that was not possible: a server that is stuck would make a new line of every
    one that follows.
    """
    if not unknown:
        return error
    warn(f"{error}; {len(unknown)} lines count as new, though others may have had them")
    try:
        bloom.add_many(unknown)
    except (BloomlockError, RedisError, OSError) as failure:
        return failure
    return None


def _unknown_is_new(results: Sequence[bool | None]) -> list[bool | None]:
    return [result is not False for result in results]


def test_lines(bloom: BloomFilter, lines: Sequence[bytes]) -> Answers:
    """Test lines without adding them; nothing is at stake, so errors are raised."""
    return Answers([not seen for seen in bloom.exists_many(lines)])
