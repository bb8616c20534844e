"""Where the server is: from a parameter, the environment, or embedded; and how that is shown."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import redis.exceptions

from bloomlock.effects import shorten_traceback
from bloomlock.errors import ConfigurationError, ServerError
from bloomlock.refusals import explain, is_refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

URL_VARIABLES = ("BLOOMLOCK_URL", "REDIS_URL")
SCHEMES = ("redis://", "rediss://", "unix://")

_HIDDEN = "***"
_SHOWN = 80
# Scheme, authority, path, query and fragment.
_PARTS = re.compile(r"(?:([a-z][a-z0-9+.-]*)://)?([^/?#]*)([^?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_PLACE = re.compile(
    r"(?:[\w.-]*|\[[0-9a-f:.%\w]*\])(?::[0-9]*)?(?:/.*)?", re.IGNORECASE | re.DOTALL
)
_HARMLESS_QUERY = re.compile(r"\?(?:db=[0-9]+)?")
_ESCAPED = (
    "in a user name and a password these characters must be written as codes: @ %40, / %2F, ? %3F, "
    "# %23, % %25"
)


class Address(NamedTuple):
    """A URL and where it was found; not for messages, `hide_secret` is."""

    url: str
    source: str


def find_address(client: object, name: str = "client") -> Address:
    """Return the URL of `client`, called `name` in a message, of the environment, or embedded."""
    if client is not None:
        kind = "a redis-py client or a URL" if name == "client" else "a URL"
        return checked_address(client, name, f"{kind} that starts with ")
    for variable in URL_VARIABLES:
        if url := os.environ.get(variable):
            return checked_address(url, variable)
    from bloomlock.server.embedded import embedded_url  # noqa: PLC0415 - a URL needs none of it

    return Address(embedded_url(), "the embedded server's address")


def checked_address(url: object, source: str, kind: str = "a URL that starts with ") -> Address:
    if not isinstance(url, str) or not url.startswith(SCHEMES):
        *others, last = SCHEMES
        raise ConfigurationError(
            f"{source} must be {kind}{', '.join(others)} or {last}, not {shown(url)}"
        )
    if _is_ambiguous(url):
        raise ConfigurationError(
            f"{source} is {hide_secret(url)!r}, which has two meanings: {_ESCAPED}"
        )
    parts = _PARTS.fullmatch(url)
    if parts and parts[1] in ("redis", "rediss") and not (parts[3].strip("/") or "0").isdecimal():
        raise ConfigurationError(
            f"{source} must end with the number of a database, as redis://localhost:6379/0 does, "
            f"not {hide_secret(url)!r}"
        )
    return Address(url, source)


def shown(value: object) -> str:
    """Return a value as it may stand in a message, whatever it holds."""
    if isinstance(value, str):
        return repr(hide_secret(value)[:_SHOWN])
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    return f"a {type(value).__name__}"


def hide_secret(url: str) -> str:
    """Return the URL without what is, or may be, a user name, a password or parameters.

    >>> hide_secret("redis://user:secret@host:6379/0")
    'redis://***@host:6379/0'
    """
    match = _PARTS.fullmatch(url)
    if match is None:
        return _HIDDEN
    scheme, authority, path, parameters = match.groups(default="")
    start = f"{scheme}://" if scheme else ""
    end = parameters if not parameters or _HARMLESS_QUERY.fullmatch(parameters) else "?***"
    if scheme == "unix" and not authority and "@/" not in path:
        return f"{start}{path}{end}"
    if "@" in parameters:
        return f"{start}{_HIDDEN}"
    _, at, place = f"{authority}{path}".rpartition("@")
    if not _PLACE.fullmatch(place):
        return f"{start}{_HIDDEN}"
    return f"{start}{_HIDDEN if at else ''}{at}{place}{end}"


def _is_ambiguous(url: str) -> bool:
    """Return whether a password seems to hold what ends a part of the URL, as "/" does."""
    match = _PARTS.fullmatch(url)
    if match is None:
        return False
    scheme, authority, path, parameters = match.groups(default="")
    if scheme == "unix" and not authority.rpartition("@")[2]:
        # The path of a socket may hold an "@", and no user name ends in the middle of a word.
        path = "@" if "@/" in path else ""
    query, _, fragment = parameters.partition("#")
    named = re.search(r"[?&](?:username|password)=", query)
    return "@" in path or "@" in fragment or ("@" in query and not named)


@contextmanager
def explained(address: Address) -> Iterator[None]:
    """Raise ConfigurationError if a URL makes no client, ServerError if no server answers there."""
    url = hide_secret(address.url)
    try:
        yield
    except (ValueError, TypeError) as error:
        sentence = f"{address.source} must be the URL of a Redis server, not {url!r}"
        if url == address.url:
            raise ConfigurationError(f"{sentence} ({error})") from error
        # The error, and a traceback with it, may quote a part of the password.
        raise ConfigurationError(f"{sentence}; {_ESCAPED}") from None
    except (redis.exceptions.RedisError, OSError) as error:
        shorten_traceback(error)
        # The line says what its own cause says.
        error.__cause__, error.__suppress_context__ = None, True
        line = explain(error)
        if is_refusal(error):
            raise ServerError(f"the server at {url} refuses: {line}") from error
        raise ServerError(
            f"no Redis server answers at {url} ({line}){_advice(address.url, line)}"
        ) from error


def _advice(url: str, line: str) -> str:
    if 'got "H"' in line:
        return "; what answers there is a web server"
    if url.startswith("rediss:") and "Error 111" not in line:
        return "; if the server speaks no TLS, write redis://"
    if url.startswith("redis:") and "closed" in line.lower():
        return "; if the server speaks TLS, write rediss://"
    return ""
