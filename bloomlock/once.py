"""`@once`: a function that runs once for each key, over all machines that share a filter."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, overload
from uuid import UUID
from weakref import WeakKeyDictionary

from bloomlock.errors import ConfigurationError, Duplicate, FailedTooOften, InProgress
from bloomlock.filters._async.bloom import AsyncBloomFilter
from bloomlock.filters._sync.bloom import BloomFilter
from bloomlock.filters.claims import TTL_SECONDS, ClaimState, check_options
from bloomlock.filters.inspection import FilterBase
from bloomlock.filters.support import CLAIMS, check_support

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from bloomlock.filters._async.claims import AsyncClaim
    from bloomlock.filters._sync.claims import Claim

P = ParamSpec("P")
R = TypeVar("R")
Item: TypeAlias = "str | bytes"
Selector: TypeAlias = "str | Sequence[str] | Callable[..., object]"
AnyFilter: TypeAlias = "BloomFilter | AsyncBloomFilter"

_users: WeakKeyDictionary[FilterBase, dict[str | None, str]] = WeakKeyDictionary()
"""For each filter the functions that use it, by their scopes."""


class Once(Protocol):
    """A decorator; the function returns None in place of running a second time, or raises."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...
    def __call__(self, function: Any, /) -> Any:
        """Decorate a function."""


def once(
    bloom_filter: AnyFilter | Callable[[], AnyFilter],
    key: Selector,
    *,
    on_duplicate: Literal["return", "raise"] = "return",
    on_busy: Literal["return", "raise"] = "raise",
    scope: str | None = None,
    ttl: float = TTL_SECONDS,
    renew: bool = True,
    wait: float | None = None,
    max_attempts: int | None = None,
) -> Once:
    """Let a function run once for each key, over all machines that share the filter.

    A call claims the key, runs the function and commits the key. An exception, a cancellation or
    an interrupt gives the key back and goes on; the next call runs. If the process dies, the next
    call after the lease runs. What the function returns is not kept.

    At the filter's error rate a new key counts as done, and the function does not run.

    Args:
        bloom_filter: Holds the keys that are done: a BloomFilter for a function, an
            AsyncBloomFilter for a coroutine function; or a function that returns it.
        key: What names the work: a path such as `"order.id"` (a parameter, then attributes or keys
            of mappings), several paths, or a function of the same arguments. A value is a str,
            bytes, an int or a UUID. A single one is the item in the filter; several are joined as
            netstrings.
        on_duplicate: For a key that is done: `"return"` None, or `"raise"` Duplicate.
        on_busy: For a key that another call works on now (after `wait`): `"raise"` InProgress, or
            `"return"` None.
        scope: Stands before the key, where several functions share the filter.
        ttl: The lease in seconds.
        renew: Whether the lease is renewed while the function runs.
        wait: Seconds to wait for another call with that key; None: not at all.
        max_attempts: After how many exceptions or deaths the key counts as failed; None: never.

    Raises:
        ConfigurationError: By `once` and the decorator, if an argument is not usable.

    The function raises, in place of running: Duplicate, InProgress, FailedTooOften (until
    `retry_failed`), TypeError or ConfigurationError if the arguments have no key, and errors of
    `BloomFilter.claim`; after it has run, those of `commit`.

    Cost: two round trips for a new key, one for one that is done.

    >>> from bloomlock import BloomFilter
    >>> from bloomlock.server import PrivateServer
    >>> with PrivateServer() as server:
    ...     welcomed = BloomFilter("welcomed", 1000, client=server.url)
    ...     @once(welcomed, key="user.id")
    ...     def welcome(user):
    ...         return f"mail to {user['name']}"
    ...     welcome({"id": 7, "name": "Ada"}), welcome({"id": 7, "name": "Ada"}), "7" in welcomed
    ('mail to Ada', None, True)
    """
    for option, given in (("on_duplicate", on_duplicate), ("on_busy", on_busy)):
        if given not in {"return", "raise"}:
            raise ConfigurationError(f'{option} must be "return" or "raise", not {given!r:.80}')
    if scope is not None and not isinstance(scope, str):
        raise ConfigurationError(f"scope must be a str or None, not {scope!r:.80}")
    check_options(ttl, renew, max_attempts, wait)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        called = getattr(function, "__qualname__", None) or repr(function)
        item_of = _item_getter(key, function, called, scope)
        done = _filter_getter(bloom_filter, is_async=is_async, called=called, scope=scope)

        def claim(item: Item) -> Any:
            return done().claim(item, ttl, renew=renew, wait=wait, max_attempts=max_attempts)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with claim(item_of(*args, **kwargs)) as taken:
                if taken:
                    return _finished(called, function(*args, **kwargs))
            return _answer(called, taken, on_duplicate, on_busy)

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            async with await claim(item_of(*args, **kwargs)) as taken:
                if taken:
                    return _finished(called, await function(*args, **kwargs))
            return _answer(called, taken, on_duplicate, on_busy)

        return run_async if is_async else run

    return decorate


def _filter_getter(
    given: AnyFilter | Callable[[], AnyFilter], *, is_async: bool, called: str, scope: str | None
) -> Callable[[], Any]:
    def checked(found: Any) -> Any:
        kind = AsyncBloomFilter if is_async else BloomFilter
        if not isinstance(found, kind):
            raise ConfigurationError(
                f"bloom_filter for {called}(), {'a coroutine' if is_async else 'a'} function, must "
                f"be of the class {kind.__name__}, or a function that returns one, not "
                f"{found!r:.80}"
            )
        check_support(CLAIMS, found._state.strategy.name)  # noqa: SLF001 - our own classes
        user = _users.setdefault(found, {}).setdefault(scope, called)
        if user != called:
            raise ConfigurationError(
                f"{called}() must have a scope= or a filter of its own: {user}() has keys in "
                f"{found.name!r} too"
            )
        return found

    if callable(given) and not isinstance(given, FilterBase):
        return lambda: checked(given())
    found = checked(given)
    return lambda: found


def _item_getter(
    key: Selector, function: Callable[..., object], called: str, scope: str | None
) -> Callable[..., Item]:
    if not callable(function) or isinstance(function, (type, staticmethod)):
        raise ConfigurationError(
            f"@once decorates a function, and stands below @staticmethod and the like, not "
            f"{function!r:.80}"
        )
    values = key if callable(key) else _path_reader(key, function, called)

    def item_of(*args: object, **kwargs: object) -> Item:
        found = values(*args, **kwargs)
        parts: list[Item] = [] if scope is None else [scope]
        for value in found if isinstance(found, tuple) else (found,):
            if not isinstance(value, (str, bytes, int, UUID)) or isinstance(value, bool):
                raise TypeError(
                    f"key of {called}() must be a str, bytes, an int or a UUID, not {value!r:.80}"
                )
            # An int may be of an enumeration, which has another text.
            plain = int(value) if isinstance(value, int) else value
            parts.append(plain if isinstance(plain, (str, bytes)) else str(plain))
        if len(parts) == 1:
            return parts[0]
        # No other values give these netstrings (cr.yp.to/proto/netstrings.txt).
        encoded = [part if isinstance(part, bytes) else part.encode() for part in parts]
        whole = b"".join(b"%d:%b," % (len(part), part) for part in encoded)
        return whole.decode() if all(isinstance(part, str) for part in parts) else whole

    return item_of


def _path_reader(
    key: str | Sequence[str], function: Callable[..., object], called: str
) -> Callable[..., tuple[object, ...]]:
    paths = [key] if isinstance(key, str) else list(key) if isinstance(key, (tuple, list)) else []
    if not paths or not all(isinstance(path, str) and all(path.split(".")) for path in paths):
        raise ConfigurationError(
            'key must be a path such as "order.id", several of them, or a function, '
            f"not {key!r:.80}"
        )
    signature = inspect.signature(function)
    for path in paths:
        if path.partition(".")[0] not in signature.parameters:
            raise ConfigurationError(
                f"key {path!r} must begin with a parameter of {called}(), which has "
                f"{', '.join(signature.parameters) or 'none'}"
            )

    def follow(path: str, arguments: dict[str, Any]) -> object:
        place, *parts = path.split(".")
        value = arguments[place]
        for part in parts:
            try:
                value = value[part] if isinstance(value, Mapping) else getattr(value, part)
            except (KeyError, AttributeError) as error:
                raise ConfigurationError(
                    f"key {path!r} of {called}(): there is no {part!r} in {place}"
                ) from error
            place = part
        return value

    def values(*args: object, **kwargs: object) -> tuple[object, ...]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return tuple(follow(path, bound.arguments) for path in paths)

    return values


def _answer(called: str, taken: Claim | AsyncClaim, on_duplicate: str, on_busy: str) -> None:
    what = f"{called}() with the key {taken.item!r:.80}"
    if taken.state is ClaimState.FAILED:
        raise FailedTooOften(f"{what} failed {taken.attempts} times", taken.attempts)
    if taken.state is ClaimState.BUSY and on_busy == "raise":
        left = taken.remaining
        raise InProgress(
            f"{what} runs now; its lease ends in {left:.1f} s, if it is not renewed", left
        )
    if taken.state is ClaimState.SEEN and on_duplicate == "raise":
        raise Duplicate(f"{what} was done before")


def _finished(called: str, result: Any) -> Any:
    if isinstance(result, (CoroutineType, GeneratorType, AsyncGeneratorType)):
        if isinstance(result, CoroutineType):
            result.close()
        raise ConfigurationError(
            f"{called}() must do its work before it returns; it returned a "
            f"{type(result).__name__}, and its key was given back"
        )
    return result
