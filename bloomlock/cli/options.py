"""Arguments and options that several commands have, and the filters that they name."""

from __future__ import annotations

import contextlib
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

# The public names are imported at their first use, so --help does without them.
import bloomlock

from .errors import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    F = TypeVar("F", bound=Callable[..., Any])
    Named = AbstractContextManager[bloomlock.BloomFilter]
    """A filter that `with` opens: after all that can be known without a server is checked."""

DEFAULT_CAPACITY = 1_000_000
DEFAULT_ERROR_RATE = 1e-6
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Seconds(click.ParamType["float"]):
    """A time of at least 0, in seconds or with a unit.

    >>> [Seconds().convert(text, None, None) for text in ("90", "1.5h", "7d")]
    [90.0, 5400.0, 604800.0]
    """

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        match = re.fullmatch(r"(\d*\.?\d+)([smhdw]?)", str(value))
        if match is None:
            self.fail(f"{value!r} is no number of seconds, or number with m, h, d or w", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


class Count(click.ParamType["int"]):
    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        try:
            number = int(text) if text.isdigit() else int(float(text))
            is_whole = text.isdigit() or number == float(text)
        except (ValueError, OverflowError):
            number, is_whole = 0, False
        if number < 1 or not is_whole:
            self.fail(f"{value!r} is no whole number from 1 on, such as 50e6", param, ctx)
        return number


def time_option(*names: str, default: float | None = None, what: str) -> Callable[[F], F]:
    return click.option(
        *names,
        type=Seconds(),
        default=default,
        show_default=default is not None,
        metavar="TIME",
        help=what,
    )


def status_option(*names: str, default: int, what: str) -> Callable[[F], F]:
    status = click.IntRange(0, 255)
    return click.option(
        *names, type=status, default=default, show_default=True, metavar="N", help=what
    )


name_argument = click.argument("name")
items_argument = click.argument("items", nargs=-1, metavar="[ITEM]...")
json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON.")
url_option = click.option(
    "--url", metavar="URL", help="Server.  [default: BLOOMLOCK_URL, REDIS_URL, own]"
)
zero_option = click.option(
    "-z",
    "--zero-terminated",
    "delimiter",
    is_flag=True,
    callback=lambda _context, _option, is_zero: b"\0" if is_zero else b"\n",
    help="Lines end with NUL, not newline.",
)


def _read_key(_context: click.Context, _option: click.Parameter, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        # Editors put a newline at the end.
        return Path(path).read_bytes().removesuffix(b"\n")
    except OSError as error:
        raise Failure(f"cannot read the key file {path}: {error.strerror}") from error


key_option = click.option(
    "--key-file",
    "key",
    envvar="BLOOMLOCK_KEY_FILE",
    callback=_read_key,
    metavar="FILE",
    help="The filter's secret.  [default: BLOOMLOCK_KEY_FILE]",
)

error_rate_option = click.option(
    "--error-rate",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="P",
    help=f"Rate of false positives.  [default: {DEFAULT_ERROR_RATE:g}]",
)
optimize_option = click.option(
    "--optimize",
    type=click.Choice(["memory", "balanced", "speed"]),
    metavar="WHAT",
    help="memory, balanced or speed.  [default: balanced]",
)
window_option = time_option("--window", what="Forget an item after TIME, as 7d or 12h.")
slices_option = click.option("--slices", type=int, metavar="N", help="Slices of the window.")

_CREATION = (
    click.option(
        "--capacity",
        type=Count(),
        metavar="N",
        help=f"Different items it has room for.  [default: {DEFAULT_CAPACITY}]",
    ),
    error_rate_option,
    optimize_option,
    window_option,
    slices_option,
    click.option("--grow", is_flag=True, help="Grow at the capacity, and keep the error rate."),
    click.option("--native", is_flag=True, help="Use the server's own Bloom filter (BF.ADD)."),
    click.option("--random-key", is_flag=True, help="Store a random key with the filter."),
    key_option,
    url_option,
)


def window_of(window: float | None, slices: int | None) -> bloomlock.Window | None:
    """Return what --window and --slices say."""
    if window is None and slices is not None:
        raise Failure("--slices divides a time window; give --window too")
    return None if window is None else bloomlock.Window(window, slices)


def creation_options(command: F) -> F:
    """Give a command the options of a new filter; `parameters_of` takes them."""
    for option in reversed(_CREATION):
        command = option(command)
    return command


def parameters_of(
    *,
    grow: bool,
    native: bool,
    random_key: bool,
    key: bytes | None,
    url: str | None,
    window: float | None,
    slices: int | None,
    **shape: Any,
) -> dict[str, Any]:
    if random_key and key is not None:
        raise Failure("--random-key and a key file exclude each other")
    given = {name: value for name, value in shape.items() if value is not None}
    # Raises for what no filter can have, before anything is sent.
    whole = {"capacity": DEFAULT_CAPACITY, "error_rate": DEFAULT_ERROR_RATE, **given}
    divided = window_of(window, slices)
    bloomlock.plan(**whole, window=divided)
    if divided is not None:
        given["window"] = divided
    policies = {"on_full": "grow"} if grow else {}
    strategy = {"strategy": "native"} if native else {}
    secret = {"key": random_key or key} if random_key or key else {}
    return {**given, **policies, **strategy, **secret, "client": url}


def create(name: str, parameters: dict[str, Any], **policies: Any) -> bloomlock.BloomFilter:
    """Create a filter, or attach to one that has all these parameters."""
    defaults = {"capacity": DEFAULT_CAPACITY, "error_rate": DEFAULT_ERROR_RATE}
    return bloomlock.BloomFilter(name, **{**defaults, **policies, **parameters})


def open_as_it_is(
    name: str, url: str | None, key: bytes | None, **policies: Any
) -> bloomlock.BloomFilter:
    """Open a filter, with the key only where it needs one: of several some may have none."""
    opened = functools.partial(bloomlock.BloomFilter.open, name, client=url, **policies)
    try:
        return opened()
    except bloomlock.errors.FilterMismatchError as error:
        mismatch = error
    # The server may have the filter itself; those have no key.
    with contextlib.suppress(
        bloomlock.errors.FilterMismatchError, bloomlock.errors.ConfigurationError
    ):
        return opened(strategy="native")
    if key is None:
        raise mismatch
    return opened(key=key)


def opens_filter(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --url and --key-file; `with named` opens the filter NAME, as it is."""

    @url_option
    @key_option
    @functools.wraps(command)
    def opened(*, name: str, url: str | None, key: bytes | None, **options: Any) -> Any:
        @contextlib.contextmanager
        def named() -> Iterator[bloomlock.BloomFilter]:
            with open_as_it_is(name, url, key) as bloom:
                yield bloom

        return command(named(), **options)

    return opened


def example(line: str) -> str:
    r"""Return a command as it follows the options in a help text.

    >>> example("bloomlock filter ls")
    '\x08\nExample:  bloomlock filter ls'
    """
    # The backspace makes click leave the line as it is.
    return f"\b\nExample:  {line}"
