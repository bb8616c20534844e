"""Options that several commands have, and the filter they describe."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

# The public names are imported at their first use, so --help does without them.
import bloomlock

from .errors import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_CAPACITY = 1_000_000
DEFAULT_ERROR_RATE = 1e-6


_MANY = 1_000_000
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def bytes_for(capacity: int, error_rate: float, **shape: Any) -> float:
    """Return about how many bytes a filter takes.

    >>> round(bytes_for(2_000_000, 1e-6))
    11697690
    """
    # The bits of a filter in the process take memory when they are set.
    return bloomlock.MemoryBloomFilter(_MANY, error_rate, **shape).num_bits / _MANY * capacity / 8


def number(kind: type[int | float]) -> Callable[[str], int | float | str]:
    """Return a function from text to a number; it leaves other text for the library to refuse."""

    def read(text: str) -> int | float | str:
        try:
            return kind(text)
        except ValueError:
            return text

    return read


def duration(text: str) -> float | str:
    """Return a duration in seconds; it leaves other text for the library to refuse.

    >>> [duration(text) for text in ("90", "1.5h", "7d", "soon")]
    [90.0, 5400.0, 604800.0, 'soon']
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", text)
    return text if match is None else float(match[1]) * _UNITS[match[2]]


url_option = click.option(
    "--url",
    metavar="URL",
    help="Redis server.  [default: BLOOMLOCK_URL, REDIS_URL, a server of bloomlock's own]",
)


def _read_key(_context: click.Context, _option: click.Parameter, path: str | None) -> bytes | None:
    """Return the secret in a file, without the newline that editors put at its end."""
    if path is None:
        return None
    try:
        return Path(path).read_bytes().removesuffix(b"\n")
    except OSError as error:
        raise Failure(f"cannot read the key file {path}: {error.strerror}") from error


key_option = click.option(
    "--key-file",
    "key",
    envvar="BLOOMLOCK_KEY_FILE",
    show_envvar=True,
    callback=_read_key,
    metavar="FILE",
    help="File with the filter's secret key, 16 to 64 bytes; for items from strangers, who can "
    "else make one item look like another.",
)

name_argument = click.argument("name")

zero_option = click.option(
    "-z",
    "--zero-terminated",
    "delimiter",
    is_flag=True,
    callback=lambda _context, _option, is_zero: b"\0" if is_zero else b"\n",
    help="Lines end with NUL, not newline.",
)

on_full_option = click.option(
    "--on-full",
    default="warn",
    show_default=True,
    metavar="[warn|raise|grow]",
    help="At the capacity: warn and go on with more and more errors, stop, or grow and keep the "
    "error rate; a filter that grows is made so.",
)

CLAIMING_STRATEGIES = ("atomic", "lua")
STRATEGIES = (*CLAIMING_STRATEGIES, "transaction", "pipeline", "lock", "native")

_FILTER_OPTIONS = (
    click.option(
        "--capacity",
        type=number(int),
        metavar="N",
        help="Different items a new filter is made for; an existing one must have the same.  "
        "[default: that of the existing one, or as many as there are lines in files, at least "
        f"{DEFAULT_CAPACITY}]",
    ),
    click.option(
        "--error-rate",
        type=number(float),
        metavar="P",
        help="Rate of false positives when it is full.  "
        f"[default: that of the existing one, or {DEFAULT_ERROR_RATE:g}]",
    ),
    url_option,
    click.option(
        "--optimize",
        metavar="[memory|balanced|speed]",
        help="Fewer hash functions take less time and more memory.  "
        "[default: as the existing one, or balanced]",
    ),
    click.option(
        "--num-hashes",
        type=number(int),
        metavar="K",
        help="Hash functions of an item, in place of --optimize.",
    ),
    key_option,
    click.option(
        "--random-key",
        is_flag=True,
        help="Give a new filter a random key, stored with it, in place of a --key-file.",
    ),
    click.option(
        "--window",
        type=duration,
        metavar="TIME",
        help="Forget each item so long after it was added, by the server's clock, and at most a "
        "slice later: seconds, or a number with m, h, d or w.  [default: as the existing one, or "
        "never]",
    ),
    click.option(
        "--slices",
        type=number(int),
        metavar="[6|14|30]",
        help="Slices of the window: more are more exact.  [default: 14]",
    ),
    click.option(
        "--on-lost",
        default="raise",
        show_default=True,
        metavar="[raise|recreate]",
        help="If the filter is cleared or deleted meanwhile: stop, or go on with a new one.",
    ),
)


def _with_filter_options(command: F, strategies: Sequence[str]) -> F:
    strategy_option = click.option(
        "--strategy",
        default="atomic",
        show_default=True,
        metavar=f"[{'|'.join(strategies)}]",
        help="How an update reaches the server.",
    )
    for option in (strategy_option, *reversed(_FILTER_OPTIONS)):
        command = option(command)
    return command


def filter_options(command: F) -> F:
    """Give a command the options that describe a filter; they arrive as keywords."""
    return _with_filter_options(command, STRATEGIES)


def claims_options(command: F) -> F:
    """Give a command the options that describe a filter whose items are claimed."""
    return _with_filter_options(command, CLAIMING_STRATEGIES)


def open_as_it_is(name: str, url: str | None, key: bytes | None) -> bloomlock.BloomFilter:
    """Open a filter, with the key only where it needs one: of several some may have none."""
    try:
        return bloomlock.BloomFilter.open(name, client=url)
    except bloomlock.errors.FilterMismatchError as error:
        mismatch = error
    # One that the server has itself, without a key; a server without such filters refuses.
    with contextlib.suppress(
        bloomlock.errors.FilterMismatchError, bloomlock.errors.ConfigurationError
    ):
        return bloomlock.BloomFilter.open(name, client=url, strategy="native")
    if key is None:
        raise mismatch
    return bloomlock.BloomFilter.open(name, client=url, key=key)


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """What a user said about a filter; None: nothing.

    Attributes:
        lines: Lines there are to come at most, for a new filter without a capacity;
            None: not known.
    """

    capacity: Any = None
    error_rate: Any = None
    url: str | None = field(default=None, repr=False)  # it may hold a password
    optimize: Any = None
    num_hashes: Any = None
    strategy: Any = "atomic"
    on_lost: Any = "raise"
    on_full: Any = "warn"
    lines: int | None = None
    key: bytes | None = field(default=None, repr=False)
    random_key: bool = False
    window: Any = None
    slices: Any = None

    def new_key(self) -> bytes | Literal[True] | None:
        """Return the key of a filter that is created."""
        if not self.random_key:
            return self.key
        if self.key is not None:
            raise Failure("--random-key and a key file exclude each other")
        return True

    def new_capacity(self) -> Any:
        """Return the capacity of a filter that is created."""
        if self.capacity is not None:
            return self.capacity
        return max(DEFAULT_CAPACITY, self.lines or 0)

    def new_error_rate(self) -> Any:
        """Return the error rate of a filter that is created."""
        return DEFAULT_ERROR_RATE if self.error_rate is None else self.error_rate

    def new_shape(self) -> dict[str, Any]:
        """Return what decides on the hash functions of a filter that is created, as arguments."""
        return {
            "optimize": self.optimize,
            "num_hashes": self.num_hashes,
        }

    def new_window(self) -> dict[str, Any]:
        """Return the time window of a filter that is created, as arguments."""
        if self.window is not None:
            return {"window": bloomlock.Window(self.window, self.slices)}
        if self.slices is not None:
            raise Failure("--slices needs --window, which it divides")
        return {}

    def create_or_open(self, name: str) -> bloomlock.BloomFilter:
        """Create the filter, or attach to one that has the parameters the user gave."""
        try:
            # First, because it looks at every parameter before it sends anything.
            return self.create(name)
        except bloomlock.errors.FilterMismatchError:
            return self._open_as_it_is(name)

    async def open_async(self, name: str) -> bloomlock.AsyncBloomFilter:
        """Open a filter that `create_or_open` has created or opened."""
        policies = self._policies()
        key = None if self.random_key else self.key
        return await bloomlock.AsyncBloomFilter.open(name, client=self.url, key=key, **policies)

    def create(self, name: str) -> bloomlock.BloomFilter:
        """Create the filter, or attach to one that has all these parameters."""
        return bloomlock.BloomFilter(
            name,
            self.new_capacity(),
            self.new_error_rate(),
            client=self.url,
            key=self.new_key(),
            **self.new_shape(),
            **self.new_window(),
            **self._policies(),
        )

    def _open_as_it_is(self, name: str) -> bloomlock.BloomFilter:
        found = bloomlock.BloomFilter.open(
            name, client=self.url, key=self.new_key(), **self._policies()
        )
        pairs = (
            ("capacity", found.capacity, self.capacity),
            ("error_rate", found.error_rate, self.error_rate),
            ("num_hashes", found.num_hashes, self.num_hashes),
            ("window", _seconds(found.window), self.window),
            ("slices", found.slices, self.slices),
        )
        differences = [
            f"{what}: stored {stored}, asked {asked}"
            for what, stored, asked in pairs
            if asked not in (None, stored)
        ]
        if differences:
            found.close()
            raise bloomlock.errors.FilterMismatchError(
                f"filter {name!r} exists with other parameters ({'; '.join(differences)})"
            )
        if self.optimize is not None:
            with found:
                same = replace(
                    self,
                    capacity=found.capacity,
                    error_rate=found.error_rate,
                    window=_seconds(found.window),
                    slices=found.slices,
                )
            return same.create(name)
        return found

    def _policies(self) -> dict[str, Any]:
        return {
            "strategy": self.strategy,
            "on_lost": self.on_lost,
            "on_full": self.on_full,
        }


def _seconds(window: timedelta | None) -> float | None:
    return None if window is None else window.total_seconds()


def examples(*lines: str) -> str:
    """Return commands as they follow the options in a help text, one a line.

    >>> examples("bloomlock ls", "bloomlock info urls").splitlines()[1:]
    ['Examples:', '  bloomlock ls', '  bloomlock info urls']
    """
    title = "Example:" if len(lines) == 1 else "Examples:"
    # The backspace makes click leave the lines as they are.
    return "\n  ".join(["\b\n" + title, *lines])
