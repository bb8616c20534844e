"""What a filter holds, read from its server: into a file, the process, or another filter.

Bits only ever go from 0 to 1, so what is read while other clients add holds at least what was added
before. With a time window that holds for the slices that are live. A copy has the state that a
shard had when it was read first. What is set in a later slice after that is not live in it, and is
wiped, or is of that slice, when the copy turns to it.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from bloomlock.arrays import np
from bloomlock.commands import answer_of, call, encode_command, in_parallel, run_on
from bloomlock.descriptor import COPY as COPIED
from bloomlock.descriptor import (
    HEADER_BYTES,
    has_discards,
    header_from_bytes,
    plain_header,
    unflagged,
)
from bloomlock.descriptor import IMPORT as IMPORTED
from bloomlock.effects import Call
from bloomlock.hash_keys import DIGEST_BYTES
from bloomlock.sizing import FIRST_BYTE
from bloomlock.slices import slices_in
from bloomlock.strategies.base import header_command, start_command
from bloomlock.strategies.bitmap import merge_part

from .files import RECORD_BYTES, SHARD_BYTES, FileReader, FileWriter, Layout, Part, refuse_other_key
from .memory import MemoryBloomFilter
from .memory_bits import check_same_bits
from .placing import Changed, or_give_up
from .state import in_one_generation
from .support import COPY, EXPORT, FROM_FILTER, FROM_MEMORY, IMPORT, TO_MEMORY, check_support
from .switch import Prepared
from .tombstones import read_set

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, BinaryIO

    from bloomlock.effects import Core
    from bloomlock.keys import FilterKeys

    from .files import FilePath
    from .generation import View
    from .state import FilterState

    Run = Callable[[Core[Any]], Any]
    There = Callable[[Core[Any]], Core[Any]]

Progress: TypeAlias = "Callable[[int, int], None]"
"""Called with how much is done, and of how much."""

SETS_AT_ONCE = 8
T = TypeVar("T")


class SourceReplaced(Exception):  # noqa: N818 - an event for `read_source`, not an error
    """What is read is not of the generation of before."""


class Source:
    """One generation of a filter that is read.

    Of each shard header and state are read first, then the tombstones, then the bits, each with the
    header. So all bits of what a tombstone stands for are there, and what has no flag at first has
    no tombstones, whatever comes later.
    """

    layout: Layout
    is_flagged: bool

    def __init__(self, view: View) -> None:
        self.view = view

    def begin(self) -> Core[None]:
        """Read all but the bits."""
        view = self.view
        asked = [call(one.key, start_command(one.key)) for one in view.shards]
        self._starts = [start for (start,) in (yield from in_parallel(asked))]
        headers = [header_from_bytes(start[:HEADER_BYTES]) for start in self._starts]
        flagged = [number for number, header in enumerate(headers) if has_discards(header)]
        self.is_flagged = bool(flagged)
        reads = [read_set(view.shards[number].key, view.descriptor) for number in flagged]
        sets = yield from in_parallel(reads, SETS_AT_ONCE)
        if None in sets or any(unflagged(header) != view.header for header in headers):
            raise SourceReplaced
        self._records = b"".join(
            number.to_bytes(SHARD_BYTES, "big") + record
            for number, records in zip(flagged, sets, strict=True)
            for record in records or ()
        )
        slices = max(map(slices_in, self._starts)) if view.descriptor.growth else 1
        self.layout = Layout.of(view.descriptor, slices, len(self._records) // RECORD_BYTES)

    @property
    def identities(self) -> set[bytes]:
        """Of the discarded items."""
        starts = range(SHARD_BYTES, len(self._records), RECORD_BYTES)
        return {self._records[start : start + DIGEST_BYTES] for start in starts}

    def pour(
        self, write: Callable[[Sequence[Part]], Core[None]], progress: Progress | None = None
    ) -> Core[None]:
        """Let all parts be written, in their order, some at once."""
        done = 0
        for pieces in self.layout.groups():
            parts = yield from in_parallel([self._read(*piece) for piece in pieces])
            yield from write(parts)
            done += sum(len(part.data) for part in parts)
            if progress is not None:
                progress(done, self.layout.num_bytes)

    def _read(self, number: int, start: int, stop: int) -> Core[Part]:
        if number == self.layout.shards:
            return Part(number, start, self._records[start:stop])
        shard, head, end = self.view.shards[number], self._starts[number], stop
        if self.view.descriptor.growth:
            # Slices that were appended since are left out.
            end = min(stop, self.view.descriptor.string_bytes(slices_in(head)))
        bits, header = yield from call(
            shard.key,
            encode_command("GETRANGE", shard.key, start, end - 1),
            header_command(shard.key),
        )
        if plain_header(header) != shard.header:
            raise SourceReplaced
        if not start:
            bits = bytes(HEADER_BYTES) + head[HEADER_BYTES:] + bits[FIRST_BYTE:]
        return Part(number, start, bits.ljust(stop - start, b"\0"))


def read_source(state: FilterState, feature: str, use: Callable[[Source], Core[T]]) -> Core[T]:
    """Let `use` read the generation attached to, or the next where the filter may be followed."""

    def work(view: View) -> Core[T | None]:
        check_support(feature, state.strategy.name, view.descriptor)
        source = Source(view)
        try:
            yield from source.begin()
            check_support(feature, None, discards=source.is_flagged)
            return (yield from use(source))
        except SourceReplaced:
            return None

    return (yield from in_one_generation(state, work))


def fetch(state: FilterState) -> Core[MemoryBloomFilter]:
    def use(source: Source) -> Core[MemoryBloomFilter]:
        images = [np.zeros(source.layout.image, np.uint8) for _ in source.view.shards]

        def write(parts: Sequence[Part]) -> Core[None]:
            for number, start, data in parts:
                images[number][start : start + len(data)] = np.frombuffer(data, np.uint8)
            yield from ()

        yield from source.pour(write)
        return MemoryBloomFilter.of(source.view.descriptor, images)

    return (yield from read_source(state, TO_MEMORY, use))


def export_file(
    state: FilterState, path: FilePath | BinaryIO, progress: Progress | None
) -> Core[None]:
    def use(source: Source) -> Core[bool]:
        writer: FileWriter = yield Call(FileWriter, (path, source.view.descriptor, source.layout))

        def write(parts: Sequence[Part]) -> Core[None]:
            for part in parts:
                yield Call(writer.write, (part.data,))

        with closing(writer):
            try:
                yield from source.pour(write, progress)
            except SourceReplaced:
                # What an open file has of it cannot be taken back.
                raise state.lost_during(EXPORT) from None
            yield Call(writer.finish)
        return True

    yield from read_source(state, EXPORT, use)


def import_file(
    state: FilterState, path: FilePath | BinaryIO, *, replace: bool, progress: Progress | None
) -> Core[None]:
    check_support(IMPORT, state.strategy.name)
    reader: FileReader = yield Call(FileReader, (path,))
    with closing(reader):
        refuse_other_key(reader.name, reader.descriptor, state.key)
        prepared = Prepared(
            state.keys, reader.descriptor, IMPORTED, may_replace=replace, what=IMPORT
        )

        def fill() -> Core[None]:
            done = 0
            yield from prepared.begin(reader.layout)
            while part := (yield Call(reader.read)):
                yield from prepared.write([part])
                done += len(part.data)
                if progress is not None:
                    progress(done, reader.layout.num_bytes)
            yield from prepared.switch()

        yield from or_give_up(fill(), prepared.give_up)
    yield from state.attach()


def copy_to(
    state: FilterState,
    keys: FilterKeys,
    there: There,
    *,
    replace: bool,
    progress: Progress | None,
) -> Core[None]:
    """Copy a filter to keys of another client, over which `there` carries out a core."""

    def use(source: Source) -> Core[bool]:
        view = source.view
        prepared = Prepared(keys, view.descriptor, COPIED, may_replace=replace, what=COPY)

        def fill() -> Core[bool]:
            yield from there(prepared.begin(source.layout, refused=view.header))
            yield from source.pour(lambda parts: there(prepared.write(parts)), progress)
            yield from there(prepared.switch())
            return True

        return (yield from or_give_up(fill(), lambda: there(prepared.give_up())))

    yield from read_source(state, COPY, use)


def union_update(state: FilterState, run: Run, other: FilterState, other_run: Run) -> Core[None]:
    """Add all bits of another filter while both are in use.

    `run` and `other_run` carry out cores over their clients. Bits are only ever set, so a union may
    be repeated after any error.
    """

    def feed(view: View) -> Core[None]:
        def write(parts: Sequence[Part]) -> Core[None]:
            return run_on(run, _merge(view, parts, FROM_FILTER))

        def use(source: Source) -> Core[bool]:
            check_same_bits(view.descriptor, source.view.descriptor)
            yield from source.pour(write)
            return True

        yield from run_on(other_run, read_source(other, FROM_FILTER, use))

    yield from _merge_all(state, FROM_FILTER, feed)


def update_from_memory(state: FilterState, memory: MemoryBloomFilter) -> Core[None]:
    def feed(view: View) -> Core[None]:
        check_same_bits(memory._descriptor, view.descriptor)  # noqa: SLF001 - our own class
        images = memory.images()
        for pieces in Layout.of(view.descriptor).groups():
            # Copies: other threads may be adding, and what is sent again must be the same.
            parts = [Part(n, start, images[n][start:stop].tobytes()) for n, start, stop in pieces]
            yield from _merge(view, parts, FROM_MEMORY)

    yield from _merge_all(state, FROM_MEMORY, feed)


def _merge_all(state: FilterState, feature: str, feed: Callable[[View], Core[None]]) -> Core[None]:
    def work(view: View) -> Core[bool | None]:
        check_support(feature, state.strategy.name, view.descriptor, discards=view.discards)
        try:
            yield from feed(view)
        except Changed:
            return None
        yield from state.fill.look_after_add(view)
        return True

    yield from in_one_generation(state, work)


def _merge(view: View, parts: Sequence[Part], feature: str) -> Core[None]:
    merges = []
    for number, start, data in parts:
        skipped = max(0, FIRST_BYTE - start)
        bits = np.frombuffer(data, np.uint8)[skipped:]
        shard = view.shards[number]
        merges.append(merge_part(shard, start + skipped, bits, union=True))
    for reply in (yield from in_parallel(merges)):
        header, _ = answer_of(reply, f"{feature} needs")
        if header != view.header:
            # Bits do not undo a discard, so what was discarded would not be there.
            is_same = unflagged(header) == view.header
            check_support(feature, None, discards=is_same and has_discards(header))
            raise Changed
