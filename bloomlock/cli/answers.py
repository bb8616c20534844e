"""From lines to answers to lines, batch by batch: what dedup, add, exists and discard share.

No line may be lost: one that the server may have marked as seen counts as new if the answer did
not arrive, because no other client will be answered that it is new.
"""

from __future__ import annotations

import os
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import RedisError

from bloomlock import BloomFilter, MemoryBloomFilter
from bloomlock.errors import (
    BloomlockError,
    CapacityError,
    FilterLostError,
    OutcomeUnknownError,
    PartialResultError,
)

from .errors import warn
from .lines import STDIN, BatchSizes, Output, SignalGuard, read_lines
from .progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_MOST_LINES = 2**18  # what the library takes as one batch at most
_FEWEST_LINES = 2**13
_FIRST_BITS = 10_000


IN_MEMORY = BatchSizes(2**13, 2**13)
"""For a filter in this process, where nothing is at stake: what the processor's caches like."""


def sizes_on_server(bloom: BloomFilter, *, at_stake: bool = True) -> BatchSizes:
    """Return the sizes for a filter on a server.

    The largest batch goes to the server as one bitmap. That bitmap, there and back, takes fewer
    bytes than the bits of each item from num_bits / (168 num_hashes) items on, a 25th of the
    capacity. Where no line is at stake, the bitmap goes one way only.
    """
    most = max(bloom.num_bits // (144 * bloom.num_hashes), _FEWEST_LINES)
    if at_stake:
        return BatchSizes(max(1, _FIRST_BITS // bloom.num_hashes), min(most, _MOST_LINES))
    return BatchSizes(_FEWEST_LINES, min(2 * most, _MOST_LINES))


class Answers(NamedTuple):
    """What is known about the lines of one batch.

    Attributes:
        new: For each line whether it is new, None if it was not marked as seen at all; lines past
            its end neither.
        error: What stopped the batch; to be raised once the new lines are written.
    """

    new: Sequence[bool | None]
    error: Exception | None = None


def add_in_memory(bloom: MemoryBloomFilter, lines: Sequence[bytes]) -> Answers:
    try:
        return Answers(bloom.add_many(lines))
    except CapacityError as error:
        return Answers(error.results, error)


def add(bloom: BloomFilter, lines: Sequence[bytes]) -> Answers:
    new: list[bool | None] = []
    while len(new) < len(lines):
        asked = lines[len(new) :]
        try:
            new += _add(bloom, asked)
        except OutcomeUnknownError as error:
            new += _unknown_is_new(asked, error.results)
            pairs = zip(asked, error.results, strict=False)
            unknown = list(dict.fromkeys(line for line, known in pairs if known is None))
            # After a loss they may have been the first of the generation that follows. A server
            # that is stuck would make a new line of every one that follows.
            if isinstance(error, FilterLostError) or not unknown:
                return Answers(new, error)
            warn(f"{error}; {len(unknown)} lines count as new, though others may have had them")
            try:
                _add(bloom, unknown)  # so that no other client gets them
            except (BloomlockError, RedisError, OSError) as failure:
                return Answers(new, failure)
        except PartialResultError as error:
            return Answers(new + error.results, error)
        except (BloomlockError, RedisError, OSError) as error:
            return Answers(new, error)
    return Answers(new)


def _add(bloom: BloomFilter, lines: Sequence[bytes]) -> list[bool]:
    # One line needs nothing of what batches import.
    return [bloom.add(lines[0])] if len(lines) == 1 else bloom.add_many(lines)


def _unknown_is_new(lines: Sequence[bytes], results: Sequence[bool | None]) -> list[bool | None]:
    """Return the answers with unknown lines as new ones, each once.

    >>> _unknown_is_new([b"a", b"b", b"a", b"c"], [None, True, None, False])
    [True, True, False, False]
    """
    met: set[bytes] = set()
    new: list[bool | None] = []
    for line, result in zip(lines, results, strict=False):
        new.append(line not in met if result is None else result)
        if result is None:
            met.add(line)
    return new


def test(bloom: BloomFilter, lines: Sequence[bytes]) -> Answers:
    # Nothing is at stake, so errors are raised.
    seen = [bloom.exists(lines[0])] if len(lines) == 1 else bloom.exists_many(lines)
    return Answers([not each for each in seen])


def discard(bloom: BloomFilter, lines: Sequence[bytes]) -> Answers:
    # Those that were there count as new. To discard again is harmless.
    return Answers([bloom.discard(lines[0])] if len(lines) == 1 else bloom.discard_many(lines))


class Counts(NamedTuple):
    lines: int
    new: int


def answer(
    ask: Callable[[Any, Sequence[bytes]], Answers],
    bloom: BloomFilter | MemoryBloomFilter,
    files: Sequence[str] = (STDIN,),
    *,
    items: Sequence[str] = (),
    total: int | None = None,
    write: bool | None = None,
    delimiter: bytes = b"\n",
) -> Counts:
    """Answer `items`, or the lines of files where there are none; write some of them.

    `total` is the bytes of the files. The new ones are written, or (`write=False`) the others, or
    (None) none.
    """
    sizes = IN_MEMORY if isinstance(bloom, MemoryBloomFilter) else sizes_on_server(bloom)
    output = None if write is None else Output(delimiter)
    num_bytes = num_lines = num_new = 0

    def count(size: int) -> None:
        nonlocal num_bytes
        num_bytes += size

    hidden = bool(items)
    with SignalGuard() as guard, progress_bar(total, writes=bool(output), hidden=hidden) as show:
        batches: Iterable[Sequence[bytes]] = [list(map(os.fsencode, items))]
        if not items:
            batches = read_lines(files, sizes, guard, delimiter=delimiter, on_read=count)
        for batch in batches:
            # A signal, and a reader that has gone, are noticed before anything of a batch is sent,
            # or after all of it is written.
            guard.check()
            if output is not None:
                output.check()
            new, error = ask(bloom, batch)
            if output is not None:
                chosen = new if write else [is_new is False for is_new in new]
                output.write(list(compress(batch, chosen)))
            num_lines += len(new) - new.count(None)
            num_new += new.count(True)
            show(num_bytes, f"{num_lines:,} lines, {num_new:,} new")
            if error is not None:
                raise error
        guard.check()
    return Counts(num_lines, num_new)
