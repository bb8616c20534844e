"""Filters that go to files, come from files, and go to other servers; for both kinds."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import RedisError

from bloomlock.errors import BloomlockError
from bloomlock.keys import FilterKeys

from .base import FilterBase
from .files import FileReader, FileWriter, refuse_other_key
from .generation import new_generation
from .options import OpenOptions
from .prepared import Prepared
from .state import FilterState
from .support import COPY_TO, EXPORT, IMPORT, check_support
from .transfer import Reading

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO, Self, Unpack

    import redis
    import redis.asyncio

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core

    from .algebra import Progress
    from .file_format import Images, Part
    from .files import FilePath
    from .options import OpenParameters
    from .whole import Run

    Client = redis.Redis | redis.RedisCluster | str | None
    AsyncClient = redis.asyncio.Redis | redis.asyncio.RedisCluster | str | None

T = TypeVar("T")


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
        self._prepared = Prepared(
            state.keys, model, new_generation(), may_replace=replace, what=what
        )
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
                f"filter {self._prepared.keys.name!r}: the versions of forgotten items of shard "
                f"{shard} are not what was written; nothing was put in its place"
            )

    def finish(self) -> Core[None]:
        """Put it in its place."""
        return self._prepared.switch()

    def give_up(self) -> Core[None]:
        """Delete what was written."""
        return self._prepared.give_up()


class _OpenedLater(FilterBase):
    """An object of a filter that is still to be made."""

    def _connect(self, state: FilterState, client: Any) -> None:
        """Take state and client; nothing is created."""
        raise NotImplementedError

    @classmethod
    def _opening(cls, name: str, client: Any, options: OpenParameters) -> Self:
        """Return an object of a filter that is still to be made."""
        checked = OpenOptions(**options)
        made = cls.__new__(cls)
        state = FilterState(FilterKeys(name, checked.prefix), checked, None)
        made._connect(state, client)  # noqa: SLF001 - our own class
        return made


class PortableFilter(_OpenedLater):
    """What a BloomFilter has to go to files and other servers."""

    _run: Run

    def close(self) -> None:
        """Close."""
        raise NotImplementedError

    def _wait(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that waits for a disk."""
        return function(*arguments)

    def export_file(self, path: FilePath | BinaryIO, *, progress: Progress | None = None) -> None:
        """Write the filter to a file, which `import_file` reads.

        `MemoryBloomFilter.load` reads it too, unless the filter has a time window, grows, or items
        were forgotten (`discard`). What was added before is in it, whichever client added it; what
        is added meanwhile may be. What was forgotten before is forgotten in it.
        The file has its name when it is whole and on the disk. It has checksums of all its bytes.
        A random key is in it, and of a secret one a check alone.

        Args:
            path: The file; or one that is open for bytes, such as a pipe, which is written as it
                is.
            progress: Called with how many bytes are done, and of how many.

        Raises:
            FilterLostError: If the filter is cleared, replaced or lost meanwhile; no file is left.
            ConfigurationError: If the strategy is "native", whose bits are the server's.
            OSError: If the file cannot be written; what was there before is unchanged.

        Cost: the whole bitmap comes, 2 MiB in a round trip, and 1,000 forgotten items; memory for
        some MiB, and 22 bytes for each forgotten item. Clients that add are not held up.

        >>> import tempfile
        >>> from bloomlock import BloomFilter, MemoryBloomFilter
        >>> from bloomlock.server import PrivateServer
        >>> with PrivateServer() as server, tempfile.TemporaryDirectory() as folder:
        ...     pages = BloomFilter("pages", 1000, client=server.url)
        ...     pages.update(["a", "b"])
        ...     pages.export_file(f"{folder}/pages")
        ...     again = BloomFilter.import_file("again", f"{folder}/pages", client=server.url)
        ...     again.exists_many(["a", "b", "c"]), "a" in MemoryBloomFilter.load(f"{folder}/pages")
        ([True, True, False], True)
        """
        reading = Reading(self._state, EXPORT)
        view = self._run(reading.begin())
        counter = _Counter(progress, reading.images)
        writer = self._wait(FileWriter, path, view.descriptor, reading.images)
        try:
            while part := self._run(reading.next_part()):
                self._wait(writer.write, part)
                counter.add(len(part.data))
            self._wait(writer.finish)
        except BaseException:
            writer.discard()
            raise

    @classmethod
    def import_file(
        cls,
        name: str,
        path: FilePath | BinaryIO,
        *,
        client: Client = None,
        replace: bool = False,
        progress: Progress | None = None,
        **options: Unpack[OpenParameters],
    ) -> Self:
        """Make a filter of what `export_file` or `MemoryBloomFilter.save` wrote, and open it.

        No client sees a part of it: it is prepared at other keys, and has its name when all of the
        file is there and has its checksums. Until then other clients are refused the name, or use
        the filter that is replaced. After a crash in the middle import it again.

        Args:
            name: The filter; the file does not name it.
            path: The file; or one that is open for bytes, such as a pipe.
            client: As the class.
            replace: Whether a filter of that name is replaced; objects attached to it find it
                lost, as after a clear.
            progress: Called with how many bytes are done, and of how many.
            **options: As for `open`.

        Raises:
            ConfigurationError: If the name is taken and `replace` is False, the server has not the
                memory, or the file is cut, foreign, of another format or damaged: the message names
                the place.
                Nothing was changed.
            FilterMismatchError: If the file's filter has another key.
            FilterLostError: If another client took the name meanwhile, or the server lost what was
                prepared.
            OSError: If the file cannot be read.

        Cost: the bits go to the server once, 2 MiB in a round trip; eight round trips more. With
        `replace` the server has the memory of both filters for a while.
        """
        made = cls._opening(name, client, options)
        run, wait, state = made._run, made._wait, made._state  # noqa: SLF001 - our own class
        try:
            reader = wait(FileReader, path)
            try:
                refuse_other_key(reader.name, reader.descriptor, state.key)
                counter = _Counter(progress, reader.images)
                loading = Loading(
                    state, reader.descriptor, reader.images, replace=replace, what=IMPORT
                )
                try:
                    run(loading.begin())
                    while part := wait(reader.read):
                        run(loading.write(part))
                        counter.add(len(part.data))
                    run(loading.finish())
                except BaseException:
                    with suppress(RedisError, OSError):
                        run(loading.give_up())
                    raise
            finally:
                reader.close()
            run(state.attach())
        except BaseException:
            made.close()
            raise
        return made

    def copy_to(
        self,
        client: Client,
        name: str | None = None,
        *,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Copy the filter to another server, and return the copy, opened there.

        What was added before is in it; what is added meanwhile may be. What was forgotten before is
        forgotten in it. All that was written is read back and compared, then the copy gets its
        name, as in `import_file`.

        Args:
            client: That of the other server, or its URL.
            name: The copy's name; None: that of this filter.
            replace: Whether a filter of that name is replaced there.
            progress: Called with how many bytes are done, and of how many; each is written, and
                compared.

        Raises:
            FilterLostError: If this filter is cleared, replaced or lost meanwhile, or another
                client took the name there.
            BloomlockError: If the other server does not give back what was written.
            ConfigurationError: As `import_file`; and for a copy of a filter to itself.

        Cost: the bitmap comes once, and travels to the other server and back, 2 MiB in a round
        trip; memory for some MiB, 100 bytes for each of these parts, and 22 bytes for each
        forgotten item.
        """
        keys = FilterKeys(self.name if name is None else name, self._state.keys.prefix)
        reading = Reading(self._state, COPY_TO)
        view = self._run(reading.begin())
        counter = _Counter(progress, reading.images, times=2)
        made = type(self).__new__(type(self))
        state = self._state.sibling(keys)
        made._connect(state, client)  # noqa: SLF001 - our own class
        run = made._run  # noqa: SLF001
        try:
            loading = Loading(
                state,
                view.descriptor,
                reading.images,
                replace=replace,
                what=COPY_TO,
                source=view.header,
            )
            try:
                run(loading.begin())
                while part := self._run(reading.next_part()):
                    run(loading.write(part, note=True))
                    counter.add(len(part.data))
                while size := run(loading.verify_next()):
                    counter.add(size)
                run(loading.finish())
            except BaseException:
                with suppress(RedisError, OSError):
                    run(loading.give_up())
                raise
            run(state.attach())
        except BaseException:
            made.close()
            raise
        return made


class AsyncPortableFilter(_OpenedLater):
    """PortableFilter for asyncio."""

    async def _run(self, core: Core[T]) -> T:
        raise NotImplementedError

    async def close(self) -> None:
        """Close."""
        raise NotImplementedError

    async def _wait(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that waits for a disk."""
        return await asyncio.to_thread(function, *arguments)

    async def export_file(
        self, path: FilePath | BinaryIO, *, progress: Progress | None = None
    ) -> None:
        """Write the filter to a file. See BloomFilter.export_file."""
        reading = Reading(self._state, EXPORT)
        view = await self._run(reading.begin())
        counter = _Counter(progress, reading.images)
        writer = await self._wait(FileWriter, path, view.descriptor, reading.images)
        try:
            while part := await self._run(reading.next_part()):
                await self._wait(writer.write, part)
                counter.add(len(part.data))
            await self._wait(writer.finish)
        except BaseException:
            writer.discard()
            raise

    @classmethod
    async def import_file(
        cls,
        name: str,
        path: FilePath | BinaryIO,
        *,
        client: AsyncClient = None,
        replace: bool = False,
        progress: Progress | None = None,
        **options: Unpack[OpenParameters],
    ) -> Self:
        """Make a filter of a file, and open it. See BloomFilter.import_file."""
        made = cls._opening(name, client, options)
        run, wait, state = made._run, made._wait, made._state  # noqa: SLF001 - our own class
        try:
            reader = await wait(FileReader, path)
            try:
                refuse_other_key(reader.name, reader.descriptor, state.key)
                counter = _Counter(progress, reader.images)
                loading = Loading(
                    state, reader.descriptor, reader.images, replace=replace, what=IMPORT
                )
                try:
                    await run(loading.begin())
                    while part := await wait(reader.read):
                        await run(loading.write(part))
                        counter.add(len(part.data))
                    await run(loading.finish())
                except BaseException:
                    with suppress(RedisError, OSError):
                        await run(loading.give_up())
                    raise
            finally:
                reader.close()
            await run(state.attach())
        except BaseException:
            await made.close()
            raise
        return made

    async def copy_to(
        self,
        client: AsyncClient,
        name: str | None = None,
        *,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Copy the filter to another server. See BloomFilter.copy_to."""
        keys = FilterKeys(self.name if name is None else name, self._state.keys.prefix)
        reading = Reading(self._state, COPY_TO)
        view = await self._run(reading.begin())
        counter = _Counter(progress, reading.images, times=2)
        made = type(self).__new__(type(self))
        state = self._state.sibling(keys)
        made._connect(state, client)  # noqa: SLF001 - our own class
        run = made._run  # noqa: SLF001
        try:
            loading = Loading(
                state,
                view.descriptor,
                reading.images,
                replace=replace,
                what=COPY_TO,
                source=view.header,
            )
            try:
                await run(loading.begin())
                while part := await self._run(reading.next_part()):
                    await run(loading.write(part, note=True))
                    counter.add(len(part.data))
                while size := await run(loading.verify_next()):
                    counter.add(size)
                await run(loading.finish())
            except BaseException:
                with suppress(RedisError, OSError):
                    await run(loading.give_up())
                raise
            await run(state.attach())
        except BaseException:
            await made.close()
            raise
        return made


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
