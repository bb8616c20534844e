"""`bloomlock dedup`, `add`, `exists` and `discard`: from lines to answers to lines, in batches.

No line may be lost: one that the server may have marked as seen counts as new if the answer did
not arrive, because no other client will be answered that it is new.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from itertools import compress
from typing import TYPE_CHECKING, Any

import click
from redis.exceptions import RedisError

from bloomlock import MemoryBloomFilter
from bloomlock.errors import (
    BloomlockError,
    CapacityError,
    FilterLostError,
    OutcomeUnknownError,
    PartialResultError,
)

from . import options
from .errors import NO, Failure, advise, warn
from .lines import STDIN, BatchSizes, Output, SignalGuard, measure, read_lines
from .options import example
from .output import progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bloomlock import BloomFilter

    from .options import Named

    Answers = tuple[Sequence[bool | None], Exception | None]
    """For each line whether it is new (None: not marked as seen), and what stopped the batch."""
    Ask = Callable[[Any, Sequence[bytes]], Answers]

CAPACITY_FOR_A_PIPE = 10_000_000
"""59 MB at the default rate, taken as they are first used."""
FINGERPRINTERS = ("scrapy", "scrapy-redis", "earlier")
"""Of Scrapy since 2.7, of scrapy-redis since 0.8, and of both before."""
_AGAIN = "run the same command again: adding a line twice changes nothing"
_ON_SERVERS = {
    "client": "--url",
    "window": "--window",
    "on_full": "--grow",
    "strategy": "--native",
}
_MOST_LINES = 2**18  # what the library takes as one batch at most
_FEWEST_LINES = 2**13  # and what the processor's caches like
_FIRST_BITS = 10_000

_quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Write nothing; the exit status is the answer."
)


def answer(
    ask: Ask,
    bloom: BloomFilter | MemoryBloomFilter,
    files: Sequence[str] = (STDIN,),
    *,
    items: Sequence[str] = (),
    total: int | None = None,
    write: bool | None = None,
    delimiter: bytes = b"\n",
) -> tuple[int, int]:
    """Answer `items`, or the lines of files where there are none; write some of them.

    The new ones are written, or (`write=False`) the others, or (None) none. `total` is the bytes
    of the files. Returns how many were answered, and how many of them were new.
    """
    output = None if write is None else Output(delimiter)
    num_bytes = num_lines = num_new = 0

    def count(size: int) -> None:
        nonlocal num_bytes
        num_bytes += size

    hidden = bool(items)
    with SignalGuard() as guard, progress_bar(total, writes=bool(output), hidden=hidden) as show:
        batches: Iterable[Sequence[bytes]] = [list(map(os.fsencode, items))]
        if not items:
            batches = read_lines(files, _sizes(bloom), guard, delimiter=delimiter, on_read=count)
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
    return num_lines, num_new


def _sizes(bloom: BloomFilter | MemoryBloomFilter) -> BatchSizes:
    """Return the sizes of batches.

    The largest one goes to the server as one bitmap. That bitmap, there and back, takes fewer
    bytes than the bits of each item from num_bits / (168 num_hashes) items on, a 25th of the
    capacity. For a filter in this process nothing is at stake.
    """
    if isinstance(bloom, MemoryBloomFilter):
        return BatchSizes(_FEWEST_LINES, _FEWEST_LINES)
    most = max(bloom.num_bits // (144 * bloom.num_hashes), _FEWEST_LINES)
    return BatchSizes(max(1, _FIRST_BITS // bloom.num_hashes), min(most, _MOST_LINES))


def add(bloom: BloomFilter | MemoryBloomFilter, lines: Sequence[bytes]) -> Answers:
    new: list[bool | None] = []
    while len(new) < len(lines):
        asked = lines[len(new) :]
        try:
            new += _add(bloom, asked)
        except OutcomeUnknownError as error:
            unknown: dict[bytes, None] = {}
            for line, result in zip(asked, error.results, strict=False):
                # An unknown line is new, once.
                new.append(line not in unknown if result is None else result)
                if result is None:
                    unknown[line] = None
            # After a loss they may have been the first of the generation that follows. A server
            # that is stuck would make a new line of every one that follows.
            if isinstance(error, FilterLostError) or not unknown:
                return new, error
            warn(f"{error}; {len(unknown)} lines count as new, though others may have had them")
            try:
                _add(bloom, list(unknown))  # so that no other client gets them
            except (BloomlockError, RedisError, OSError) as failure:
                return new, failure
        except PartialResultError as error:
            return new + error.results, error
        except (BloomlockError, RedisError, OSError) as error:
            return new, error
    return new, None


def _add(bloom: BloomFilter | MemoryBloomFilter, lines: Sequence[bytes]) -> list[bool]:
    # One line needs nothing of what batches import.
    return [bloom.add(lines[0])] if len(lines) == 1 else bloom.add_many(lines)


def test(bloom: BloomFilter, lines: Sequence[bytes]) -> Answers:
    # Nothing is at stake, so errors are raised.
    seen = [bloom.exists(lines[0])] if len(lines) == 1 else bloom.exists_many(lines)
    return [not each for each in seen], None


def discard(bloom: BloomFilter, lines: Sequence[bytes]) -> Answers:
    # Those that were there count as new. To discard again is harmless.
    return [bloom.discard(lines[0])] if len(lines) == 1 else bloom.discard_many(lines), None


@click.command(
    "dedup", epilog=example("tail -F access.log | cut -d' ' -f7 | bloomlock dedup --name paths")
)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--name", metavar="NAME", help="Share this filter; it is created if needed.")
@click.option("--seen", is_flag=True, help="Write the lines seen before instead.")
@click.option("--count", is_flag=True, help="Write only how many lines it would be.")
@click.option("-z", "--zero-terminated", is_flag=True, help="Lines end with NUL, not newline.")
@click.option("--recreate", is_flag=True, help="Go on if the filter is cleared or deleted.")
@options.creation_options
def dedup_command(
    files: tuple[str, ...],
    *,
    name: str | None,
    seen: bool,
    count: bool,
    zero_terminated: bool,
    recreate: bool,
    **given: Any,
) -> None:
    """Write each line of FILEs, or of standard input, that was never seen before."""
    files = files or (STDIN,)
    delimiter = b"\0" if zero_terminated else b"\n"
    total, lines = measure(files, delimiter)
    parameters = options.parameters_of(**given)
    if name is None and recreate:
        raise Failure("--recreate is about a filter on a server; give its --name")
    if name is None:
        opened: Any = _in_process(parameters, lines)
    else:
        policies = {"on_lost": "recreate"} if recreate else {}
        opened = options.create_or_open(name, parameters, lines, **policies)
    with opened as bloom:
        write = None if count else not seen
        num_lines, num_new = answer(
            add, bloom, files, total=total, write=write, delimiter=delimiter
        )
    if count:
        click.echo(num_lines - num_new if seen else num_new)


@contextmanager
def _in_process(parameters: dict[str, Any], lines: int | None) -> Iterator[MemoryBloomFilter]:
    for name, option in _ON_SERVERS.items():
        if parameters.get(name) is not None:
            raise Failure(f"{option} needs --name: it is about a filter on a server")
    shape = {"error_rate": options.DEFAULT_ERROR_RATE, **parameters}
    del shape["client"]
    capacity = shape.pop("capacity", None)
    if capacity is None:
        capacity = CAPACITY_FOR_A_PIPE if lines is None else _that_fits(lines, **shape)
    try:
        yield MemoryBloomFilter(capacity, on_full="raise", **shape)
    except MemoryError:
        raise Failure(
            f"a filter for {capacity} lines does not fit into memory; give a smaller --capacity"
        ) from None
    except CapacityError as error:
        raise Failure(
            f"there are more than about {capacity} different lines; give a larger --capacity"
        ) from error


def _that_fits(lines: int, error_rate: float, **shape: Any) -> int:
    """Return the capacity for all lines, or what half of the machine's memory holds."""
    one = MemoryBloomFilter(options.DEFAULT_CAPACITY, error_rate, **shape)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Many lines may be repeats, so it is tried.
    most = int(memory / 2 * 8 * options.DEFAULT_CAPACITY / one.num_bits)
    return min(max(options.DEFAULT_CAPACITY, lines), most)


@click.command("add", epilog=example('bloomlock add -q urls "$url" && wget "$url"'))
@options.name_argument
@options.items_argument
@_quiet_option
@options.opens_filter
def add_command(named: Named, items: tuple[str, ...], *, quiet: bool) -> int:
    """Add ITEMs, or the lines of standard input, and write how many were new.

    `bloomlock filter create` makes the filter. Of all processes that add the same new item
    exactly one finds it new.

    Exit status: 0 if any item was new, 1 if all were seen before, 2 after an error.
    """
    measure(() if items else (STDIN,))
    with named as bloom, nullcontext() if items else advise(_AGAIN):
        _, num_new = answer(add, bloom, items=items)
    return _say(num_new, quiet=quiet)


@click.command("exists", epilog=example("bloomlock exists urls --new < list-of-urls.txt"))
@options.name_argument
@options.items_argument
@click.option("--seen", "write", flag_value="seen", help="Write the items that were seen before.")
@click.option("--new", "write", flag_value="new", help="Write the items that were not.")
@options.opens_filter
def exists_command(named: Named, items: tuple[str, ...], *, write: str | None) -> int:
    """Say whether ITEMs, or the lines of standard input, were added; adds nothing.

    A yes is wrong at the filter's error rate, a no never.

    Exit status: 0 if all were seen, 1 if some were not, 2 after an error.
    """
    measure(() if items else (STDIN,))
    chosen = None if write is None else write == "new"
    with named as bloom:
        _, num_new = answer(test, bloom, items=items, write=chosen)
    return NO if num_new else 0


@click.command("discard", epilog=example('bloomlock discard urls "$url"'))
@options.name_argument
@options.items_argument
@click.option("--urls", is_flag=True, help="ITEMs are URLs: discard the requests of a spider.")
@click.option(
    "--fingerprinter",
    type=click.Choice(FINGERPRINTERS),
    default=FINGERPRINTERS[0],
    help="Of --urls: whose they are.",
)
@_quiet_option
@options.opens_filter
def discard_command(
    named: Named, items: tuple[str, ...], *, urls: bool, fingerprinter: str, quiet: bool
) -> int:
    """Discard ITEMs, or the lines of standard input; write how many were there.

    No other item is touched. A discarded item is new to the next that adds it.

    Exit status: 0 if any item was there, 1 if none was, 2 after an error.
    """
    measure(() if items else (STDIN,))
    take = _url_fingerprint(fingerprinter) if urls else bytes
    with named as bloom:
        _, count = answer(lambda of, lines: discard(of, [*map(take, lines)]), bloom, items=items)
    return _say(count, quiet=quiet)


def _say(count: int, *, quiet: bool) -> int:
    if not quiet:
        click.echo(count)
    return 0 if count else NO


def _url_fingerprint(kind: str) -> Callable[[bytes], bytes]:
    """Return what takes the fingerprint of a request that GETs a URL."""
    try:
        from scrapy import Request  # noqa: PLC0415 - optional

        from scrapy_ext.fingerprints import KNOWN  # noqa: PLC0415
    except ImportError as error:
        raise Failure(f"--urls needs Scrapy ({error}); pip install 'bloomlock[scrapy]'") from None
    taker = [*KNOWN.values()][FINGERPRINTERS.index(kind)]()

    def take(url: bytes) -> bytes:
        try:
            return bytes(taker.fingerprint(Request(os.fsdecode(url))))
        except ValueError as error:
            raise Failure(f"{os.fsdecode(url)[:200]!r} is no URL of a request: {error}") from None

    return take
