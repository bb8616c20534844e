"""Arguments and options that several commands have, and the filters that they name."""

from __future__ import annotations

import contextlib
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

# The public names are imported at their first use, so --help does without them.
import bloomlock

if TYPE_CHECKING:
    from collections.abc import Callable

    F = TypeVar("F", bound=Callable[..., Any])

STDIN = "-"
DEFAULT_CAPACITY = 1_000_000
DEFAULT_ERROR_RATE = 1e-6
_DEFAULTS = {"capacity": DEFAULT_CAPACITY, "error_rate": DEFAULT_ERROR_RATE}
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def seconds(value: str | float) -> float:
    """Read a time of at least 0, in seconds or with a unit, as 90, 1.5h or 7d."""
    match = re.fullmatch(r"(\d*\.?\d+)([smhdw]?)", str(value))
    if match is None:
        raise click.BadParameter(f"{value!r} is no number of seconds, or number with m, h, d or w")
    return float(match[1]) * _UNITS[match[2]]


def count(text: str) -> int:
    with contextlib.suppress(ValueError):
        if (number := float(text)) >= 1 and number.is_integer():
            return int(number)
    raise click.BadParameter(f"{text!r} is no whole number from 1 on, such as 50e6")


def _key_of(path: str) -> bytes:
    # Editors put a newline at the end.
    return Path(path).read_bytes().removesuffix(b"\n")


def value_option(
    *names: str, kind: Any, metavar: str = "N", default: float | None = None, what: str
) -> Callable[[F], F]:
    return click.option(
        *names, type=kind, metavar=metavar, default=default, show_default=True, help=what
    )


time_option = partial(value_option, kind=seconds, metavar="TIME")
name_argument = click.argument("name")
items_argument = click.argument("items", nargs=-1, metavar="[ITEM]...")
json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON.")
url_option = click.option(
    "--url", "client", metavar="URL", help="Server.  [default: BLOOMLOCK_URL, REDIS_URL, own]"
)
key_option = click.option(
    "--key-file",
    "key",
    type=_key_of,
    envvar="BLOOMLOCK_KEY_FILE",
    metavar="FILE",
    help="The filter's secret.  [default: BLOOMLOCK_KEY_FILE]",
)
error_rate_option = value_option(
    "--error-rate",
    kind=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="P",
    what=f"Rate of false positives.  [default: {DEFAULT_ERROR_RATE:g}]",
)
optimize_option = value_option(
    "--optimize",
    kind=click.Choice(["memory", "balanced", "speed"]),
    metavar="WHAT",
    what="memory, balanced or speed.  [default: balanced]",
)
window_option = time_option("--window", what="Forget an item after TIME, as 7d or 12h.")


def several(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that gives a command several options."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


where_options = several(url_option, key_option)
"""Of a filter that is there; `open_as_it_is` takes them."""
creation_options = several(
    value_option("--capacity", kind=count, what=f"Different items.  [default: {DEFAULT_CAPACITY}]"),
    error_rate_option,
    optimize_option,
    window_option,
    click.option("--grow", "on_full", flag_value="grow", help="Grow at the capacity, keeping P."),
    click.option("--native", "strategy", flag_value="native", help="Use the server's own BF.ADD."),
    key_option,
    url_option,
)
"""Of a new filter, by the names of BloomFilter's parameters; `create` takes them."""


def shape(**given: Any) -> dict[str, Any]:
    """Return what was given, and the default capacity and error rate."""
    return _DEFAULTS | {name: value for name, value in given.items() if value is not None}


def create(name: str, **given: Any) -> bloomlock.BloomFilter:
    """Create a filter, or attach to one that has all these parameters."""
    return bloomlock.BloomFilter(name, **shape(**given))


def create_or_open(
    name: str, lines: int | None, where: dict[str, Any], **given: Any
) -> bloomlock.BloomFilter:
    """Open a filter, to which `given` must fit, or create one with room for `lines`.

    Without any parameter it is taken as it is, else only its capacity is.
    """
    given = {option: value for option, value in given.items() if value is not None}
    try:
        return create(name, **{"capacity": max(DEFAULT_CAPACITY, lines or 0), **given, **where})
    except bloomlock.errors.FilterMismatchError:
        found = open_as_it_is(name, **where)
    if not given:
        return found
    found.close()
    return create(name, **{"capacity": found.capacity, **given, **where})


def open_as_it_is(
    name: str, client: str | None = None, key: bytes | None = None, **prefix: Any
) -> bloomlock.BloomFilter:
    """Open a filter, with the key only where it needs one: of several some may have none."""
    opened = partial(bloomlock.BloomFilter.open, name, client=client, **prefix)
    mismatch, refused = bloomlock.errors.FilterMismatchError, bloomlock.errors.ConfigurationError
    try:
        return opened()
    except mismatch:
        # The server may have the filter itself; those have no key.
        with contextlib.suppress(mismatch, refused):
            return opened(strategy="native")
        if key is None:
            raise
        return opened(key=key)


def example(line: str) -> str:
    # The backspace makes click leave the line as it is.
    return f"\b\nExample:  {line}"
