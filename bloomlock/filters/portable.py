"""Filters that go to files, come from files, and go to other servers; for both kinds."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from bloomlock.delivery import elsewhere
from bloomlock.descriptor import COPY as COPIED
from bloomlock.descriptor import IMPORT as IMPORTED
from bloomlock.effects import Call
from bloomlock.errors import BloomlockError

from .files import FileReader, FileWriter, refuse_other_key
from .prepared import Prepared
from .support import COPY_TO, EXPORT, IMPORT, check_support
from .transfer import Reading

if TYPE_CHECKING:
    from typing import BinaryIO

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core

    from .algebra import Other, Progress
    from .file_format import Images, Part
    from .files import FilePath
    from .state import FilterState


class Loading:
    """A generation that is filled part by part from elsewhere, and then put in its place.

    Args:
        state: The filter that it is to be.
        model: Its parameters.
        images: How long its images are.
        replace: Whether a filter that is there is replaced.
        what: The feature that fills it; see support.py.
        source: The header of the filter that it comes from; 0: from none.
    """

    def __init__(
        self,
        state: FilterState,
        model: Descriptor,
        images: Images,
        *,
        replace: bool,
        what: str,
        source: int = 0,
    ) -> None:
        check_support(what, state.strategy.name)
        self._source = source
        self._images = images
        origin = IMPORTED if what == IMPORT else COPIED
        self._prepared = Prepared(state.keys, model, origin, may_replace=replace, what=what)
        self._written: list[tuple[int, int, int, bytes]] = []
        self._tables: list[Part] = []

    def begin(self) -> Core[None]:
        """Take the memory, and the name where it is free."""
        return self._prepared.begin(refused=self._source, slices=self._images.most_slices)

    def write(self, part: Part, *, note: bool = False) -> Core[None]:
        """Write a part; with `note` it is compared in the end."""
        if self._images.is_table(part.image):
            if note:
                self._tables.append(part)
            shard = part.image - self._prepared.target.size.shards
            yield from self._prepared.write_table(shard, part.start, part.data)
            return
        if note:
            digest = hashlib.sha256(part.data).digest()
            self._written.append((part.image, part.start, len(part.data), digest))
        if not part.start and (slices := self._images.slices_of(part.data)) > 1:
            yield from self._prepared.lengthen(part.image, slices)
        yield from self._prepared.write(*part)

    def verify_next(self) -> Core[int]:
        """Read back a part that was noted, and return its length; 0 if there is no more.

        Raises:
            BloomlockError: If it is not what was written.
        """
        if self._tables:
            part = self._tables.pop()
            yield from self._verify_table(part)
            return len(part.data)
        if not self._written:
            return 0
        shard, start, size, digest = self._written.pop()
        data = yield from self._prepared.read(shard, start, size)
        if hashlib.sha256(data).digest() != digest:
            raise BloomlockError(
                f"filter {self._prepared.keys.name!r}: bytes {start} to {start + size - 1} of "
                f"shard {shard} are not what was written; nothing was put in its place"
            )
        return size

    def _verify_table(self, part: Part) -> Core[None]:
        shard = part.image - self._prepared.target.size.shards
        if not (yield from self._prepared.table_is_as_written(shard, part.start, part.data)):
            raise BloomlockError(
                f"filter {self._prepared.keys.name!r}: the discarded items of shard {shard} "
                f"are not what was written; nothing was put in its place"
            )

    def finish(self) -> Core[None]:
        """Put it in its place."""
        return self._prepared.switch()

    def give_up(self) -> Core[None]:
        """Delete what was written."""
        return self._prepared.give_up()


def export_file(
    state: FilterState, path: FilePath | BinaryIO, progress: Progress | None
) -> Core[None]:
    """Write a filter to a file."""
    reading = Reading(state, EXPORT)
    view = yield from reading.begin()
    counter = _Counter(progress, reading.images)
    writer: FileWriter = yield Call(FileWriter, (path, view.descriptor, reading.images))
    try:
        while part := (yield from reading.next_part()):
            yield Call(writer.write, (part,))
            counter.add(len(part.data))
        yield Call(writer.finish)
    except BaseException:
        writer.discard()
        raise


def import_file(
    state: FilterState, path: FilePath | BinaryIO, *, replace: bool, progress: Progress | None
) -> Core[None]:
    """Make a filter of what a file holds, and attach to it."""
    reader: FileReader = yield Call(FileReader, (path,))
    try:
        refuse_other_key(reader.name, reader.descriptor, state.key)
        counter = _Counter(progress, reader.images)
        loading = Loading(state, reader.descriptor, reader.images, replace=replace, what=IMPORT)

        def fill() -> Core[None]:
            while part := (yield Call(reader.read)):
                yield from loading.write(part)
                counter.add(len(part.data))

        yield from _load(loading, fill())
    finally:
        reader.close()
    yield from state.attach()


def copy_to(
    source: Other, state: FilterState, *, replace: bool, progress: Progress | None
) -> Core[None]:
    """Copy a filter of another client to this one, compare what was written, and attach to it."""
    reading = Reading(source.state, COPY_TO)
    view = yield from elsewhere(source.run, reading.begin())
    counter = _Counter(progress, reading.images, times=2)
    loading = Loading(
        state,
        view.descriptor,
        reading.images,
        replace=replace,
        what=COPY_TO,
        source=view.header,
    )

    def fill() -> Core[None]:
        while part := (yield from elsewhere(source.run, reading.next_part())):
            yield from loading.write(part, note=True)
            counter.add(len(part.data))
        while size := (yield from loading.verify_next()):
            counter.add(size)

    yield from _load(loading, fill())
    yield from state.attach()


def _load(loading: Loading, fill: Core[None]) -> Core[None]:
    """Put a generation in its place when it is filled; delete it if that does not succeed."""
    try:
        yield from loading.begin()
        yield from fill
        yield from loading.finish()
    except GeneratorExit:
        raise
    except BaseException:
        with suppress(RedisError, OSError):
            yield from loading.give_up()
        raise


class _Counter:
    """Counts the bytes that are done, and reports them."""

    def __init__(self, progress: Progress | None, images: Images, times: int = 1) -> None:
        self._progress = progress
        self._done = 0
        self._all = times * images.num_bytes

    def add(self, size: int) -> None:
        """Count some more."""
        self._done += size
        if self._progress is not None:
            self._progress(self._done, self._all)
