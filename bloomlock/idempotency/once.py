"""`@once`: a function that runs once for each key, over all machines."""

from __future__ import annotations

import functools
import inspect
import logging
from dataclasses import dataclass
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)
from weakref import WeakKeyDictionary

from redis.exceptions import RedisError

from bloomlock.errors import (
    BloomlockError,
    ConfigurationError,
    Duplicate,
    FailedTooOften,
    FingerprintMismatchError,
    InProgress,
)
from bloomlock.filters._async.bloom import AsyncBloomFilter
from bloomlock.filters._sync.bloom import BloomFilter
from bloomlock.filters.answers import renew
from bloomlock.filters.base import FilterBase
from bloomlock.filters.claim_session import TTL_SECONDS, ClaimOptions, ClaimState
from bloomlock.filters.support import CLAIMS, check_support

from .arguments import Item, Selection, name_of, netstrings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bloomlock.effects import Core
    from bloomlock.filters._async.claims import AsyncClaim
    from bloomlock.filters._sync.claims import Claim
    from bloomlock.filters.state import FilterState

    from .arguments import Selector

    AnyFilter = BloomFilter | AsyncBloomFilter
    Function = Callable[..., Any]

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=FilterBase)

logger = logging.getLogger("bloomlock")

MARK = "fingerprint:"
_UNFINISHED = (CoroutineType, GeneratorType, AsyncGeneratorType)
_users: WeakKeyDictionary[FilterBase, dict[str | None, str]] = WeakKeyDictionary()
"""For each filter the functions that use it, by their scopes."""


class OnceOrNone(Protocol):
    """A decorator; the function returns None in place of running a second time."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...
    def __call__(self, function: Any, /) -> Any:
        """Decorate a function."""


class OnceOrRaise(Protocol):
    """A decorator; the function raises in place of running a second time."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Decorate a function."""


@overload
def once(
    bloom_filter: AnyFilter | Callable[[], AnyFilter],
    key: Selector,
    *,
    on_duplicate: Literal["raise"],
    on_busy: Literal["raise"] = "raise",
    scope: str | None = None,
    fingerprint: Selector | None = None,
    ttl: float = TTL_SECONDS,
    renew: bool = True,
    wait: float | None = None,
    max_attempts: int | None = None,
) -> OnceOrRaise: ...
@overload
def once(
    bloom_filter: AnyFilter | Callable[[], AnyFilter],
    key: Selector,
    *,
    on_duplicate: Literal["return", "raise"] = "return",
    on_busy: Literal["return", "raise"] = "raise",
    scope: str | None = None,
    fingerprint: Selector | None = None,
    ttl: float = TTL_SECONDS,
    renew: bool = True,
    wait: float | None = None,
    max_attempts: int | None = None,
) -> OnceOrNone: ...
def once(
    bloom_filter: AnyFilter | Callable[[], AnyFilter],
    key: Selector,
    *,
    on_duplicate: Literal["return", "raise"] = "return",
    on_busy: Literal["return", "raise"] = "raise",
    scope: str | None = None,
    fingerprint: Selector | None = None,
    ttl: float = TTL_SECONDS,
    renew: bool = True,
    wait: float | None = None,
    max_attempts: int | None = None,
) -> Any:
    """Let a function run once for each key, over all machines that share the filter.

    A call claims the key, runs the function and commits the key. If the function raises, is
    cancelled or interrupted, the key is given back and the exception goes on; the next call with
    that key runs. If the process dies, the next call runs when the lease is over.

    What the function returns is not kept: a second call does not get it.

    Args:
        bloom_filter: Holds the keys that are done: a BloomFilter for a function, an
            AsyncBloomFilter for a coroutine function; or a function that returns it, called at
            each call, so that nothing is connected to where the module is imported.
        key: What names the work: a path such as `"order.id"`, whose first part is a parameter
            and each other an attribute or the key of a mapping; several paths in a tuple or a
            list; or a function that is called with the same arguments. A value is a str, bytes,
            an int or a UUID. A single one is the item in the filter, as a text; several are
            joined as netstrings.
        on_duplicate: For a key that is done: `"return"` None, or `"raise"` Duplicate.
        on_busy: For a key that another call works on now (after `wait`), and that is not known
            to end well: `"raise"` InProgress, or `"return"` None.
        scope: Stands before the key, where several functions share the filter. Without it, each
            function needs a filter of its own.
        fingerprint: What must be the same in all calls with one key, as `key`; values as JSON
            has them. It takes the place of a second item in the filter.
        ttl: The lease in seconds: how long a key outlives the process that works on it.
        renew: Whether the lease is renewed while the function runs.
        wait: Seconds to wait for another call with that key; None: not at all.
        max_attempts: After how many exceptions or deaths the key counts as failed; None: never.

    Returns:
        A decorator, which preserves the signature. For methods, `"self.tenant"` is a path too.

    Raises:
        ConfigurationError: By `once` and the decorator, if an argument is not usable: the key
            names no parameter, the function is a generator, or the filter can claim nothing.

    The function raises, in place of running:
        Duplicate, InProgress: See above.
        FailedTooOften: After `max_attempts`, until `retry_failed`.
        FingerprintMismatchError: If the key was done, or is worked on, with another fingerprint.
            Also if it was added by something without a fingerprint, or is none that was done
            and looks like one (at the error rate). Another fingerprint is not noticed at the
            error rate, nor that of a process that died between the function and the commit.
        TypeError, ConfigurationError: If the arguments have no key.
        Errors of `BloomFilter.claim`.

    After the function has run it may raise ClaimLostError, if the lease ended and another call
    ran too, and errors of redis-py, if it is not known whether the key was committed.

    Cost: two round trips for a new key, one for one that is done, none from the near-cache; with
    a fingerprint one more each, in a filter with a time window two or three more for a new key.

    >>> from bloomlock import BloomFilter
    >>> from bloomlock.server import PrivateServer
    >>> with PrivateServer() as server:
    ...     charged = BloomFilter("charged", 1000, client=server.url)
    ...     @once(charged, key="order.id")
    ...     def charge(order):
    ...         return f"charged {order['amount']}"
    ...     charge({"id": 7, "amount": 10}), charge({"id": 7, "amount": 10}), "7" in charged
    ('charged 10', None, True)
    """
    for option, given, allowed in (
        ("on_duplicate", on_duplicate, ("return", "raise")),
        ("on_busy", on_busy, ("return", "raise")),
    ):
        if given not in allowed:
            raise ConfigurationError(f'{option} must be "return" or "raise", not {given!r:.80}')
    if scope is not None and not isinstance(scope, str):
        raise ConfigurationError(f"scope must be a str or None, not {scope!r:.80}")
    ClaimOptions.check(ttl, renew, wait, None, max_attempts)
    policy = _Policy(on_duplicate, on_busy, ttl, renew, wait, max_attempts)

    def decorate(function: Function) -> Function:
        _refuse_function(function)
        marked = None if fingerprint is None else Selection("fingerprint", fingerprint, function)
        naming = _Naming(name_of(function), Selection("key", key, function), marked, scope)
        if _is_coroutine_function(function):
            found = _Source(bloom_filter, AsyncBloomFilter, naming)

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                call = naming.name(args, kwargs)
                body = functools.partial(function, *args, **kwargs)
                return await _async_run_claimed(found.get(), call, policy, body)

            return run_async
        source = _Source(bloom_filter, BloomFilter, naming)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            call = naming.name(args, kwargs)
            return _run_claimed(
                source.get(), call, policy, functools.partial(function, *args, **kwargs)
            )

        return run

    return decorate


def _run_claimed(done: BloomFilter, call: _Call, policy: _Policy, body: Callable[[], Any]) -> Any:
    with done.claim(call.item, payload=call.fingerprint, **policy.claim_options()) as claim:
        if claim:
            result = body()
            call.refuse_unfinished(result)
            if call.mark is not None:
                # First, so that no other call sees the key without it.
                done._run(renew(done._state, call.mark))  # noqa: SLF001 - our own class
    if claim:
        if call.mark is not None and done.window is not None:
            done._run(_renew_after_commit(done._state, call.mark))  # noqa: SLF001 - our own class
        return result
    if claim.state is ClaimState.SEEN and call.mark is not None and not done.exists(call.mark):
        raise call.mismatch("was done")
    return call.answer(claim, policy)


async def _async_run_claimed(
    done: AsyncBloomFilter, call: _Call, policy: _Policy, body: Callable[[], Any]
) -> Any:
    async with await done.claim(
        call.item, payload=call.fingerprint, **policy.claim_options()
    ) as claim:
        if claim:
            result = await body()
            call.refuse_unfinished(result)
            if call.mark is not None:
                # First, so that no other call sees the key without it.
                await done._run(renew(done._state, call.mark))  # noqa: SLF001 - our own class
    if claim:
        if call.mark is not None and done.window is not None:
            await done._run(_renew_after_commit(done._state, call.mark))  # noqa: SLF001 - our own
        return result
    if (
        claim.state is ClaimState.SEEN
        and call.mark is not None
        and not await done.exists(call.mark)
    ):
        raise call.mismatch("was done")
    return call.answer(claim, policy)


def _renew_after_commit(state: FilterState, mark: Item) -> Core[None]:
    """Let a mark be remembered as long as its key, which may be of a later slice of the window.

    The function has run, and its key is committed, so that this fails is no failure of the call.
    """
    try:
        yield from renew(state, mark)
    except (RedisError, BloomlockError, OSError) as error:
        logger.warning(
            "a fingerprint in filter %r may be forgotten before its key: %s", state.keys.name, error
        )


@dataclass(frozen=True, slots=True)
class _Policy:
    """How keys are claimed, and what a call gets that does not run; see `once`."""

    on_duplicate: str
    on_busy: str
    ttl: float
    renew: bool
    wait: float | None
    max_attempts: int | None

    def claim_options(self) -> dict[str, Any]:
        return {
            "ttl": self.ttl,
            "renew": self.renew,
            "wait": self.wait,
            "max_attempts": self.max_attempts,
        }


class _Call(NamedTuple):
    """A call: its key, and what must be the same in all calls with that key.

    Attributes:
        function: The name.
        item: The key as it stands in the filter.
        fingerprint: Of the arguments; stands with the open claim.
        mark: The item that stands for both, in the filter since before the key is.
    """

    function: str
    item: Item
    fingerprint: str | None = None
    mark: Item | None = None

    def answer(self, claim: Claim | AsyncClaim, policy: _Policy) -> None:
        """Return None, or raise, for a call that did not run."""
        what = f"{self.function}() with the key {self.item!r:.80}"
        if claim.state is ClaimState.FAILED:
            raise FailedTooOften(f"{what} failed {claim.attempts} times", claim.attempts)
        if claim.state is ClaimState.BUSY:
            other = claim.payload
            is_marked = isinstance(other, str) and other.startswith(MARK)
            if self.fingerprint is not None and is_marked and other != self.fingerprint:
                raise self.mismatch("is worked on")
            if policy.on_busy == "raise":
                raise InProgress(
                    f"{what} runs now; its lease ends in {claim.remaining:.1f} s, if it is not "
                    "renewed",
                    claim.remaining,
                )
        elif policy.on_duplicate == "raise":
            raise Duplicate(f"{what} was done before")

    def mismatch(self, became: str) -> FingerprintMismatchError:
        """Return the error of a key that is known with another fingerprint."""
        return FingerprintMismatchError(
            f"the key {self.item!r:.80} of {self.function}() {became} with other arguments, or "
            "added without a fingerprint (or only looks like one that was done, at the error rate)"
        )

    def refuse_unfinished(self, result: object) -> None:
        """Raise if the work has not been done when the function returns."""
        if isinstance(result, _UNFINISHED):
            if isinstance(result, CoroutineType):
                result.close()
            raise ConfigurationError(
                f"{self.function}() must do its work before it returns; it returned a "
                f"{type(result).__name__}, and its key was given back"
            )


@dataclass(frozen=True, slots=True)
class _Naming:
    """How calls of a function are named."""

    function: str
    key: Selection
    fingerprint: Selection | None
    scope: str | None

    def name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        before = () if self.scope is None else (self.scope,)
        item = self.key.item(args, kwargs, *before)
        if self.fingerprint is None:
            return _Call(self.function, item)
        fingerprint = MARK + self.fingerprint.digest(args, kwargs)
        return _Call(self.function, item, fingerprint, netstrings([item, fingerprint]))


class _Source(Generic[F]):
    """Where a function has its filter from."""

    def __init__(
        self, given: AnyFilter | Callable[[], AnyFilter], kind: type[F], naming: _Naming
    ) -> None:
        self._given = given
        self._kind = kind
        self._naming = naming
        if isinstance(given, FilterBase) or not callable(given):
            self._checked(given)

    def get(self) -> F:
        """Return the filter."""
        if isinstance(self._given, FilterBase):
            return cast("F", self._given)
        return self._checked(cast("Callable[[], object]", self._given)())

    def _checked(self, found: object) -> F:
        naming = self._naming
        if not isinstance(found, self._kind):
            kind = "a coroutine function" if self._kind is AsyncBloomFilter else "a function"
            raise ConfigurationError(
                f"bloom_filter for {naming.function}(), {kind}, must be of the class "
                f"{self._kind.__name__}, or a function that returns one, not {found!r:.80}"
            )
        check_support(CLAIMS, found._state.strategy.name)  # noqa: SLF001 - our own classes
        user = _users.setdefault(found, {}).setdefault(naming.scope, naming.function)
        if user != naming.function:
            raise ConfigurationError(
                f"{naming.function}() must have a scope= or a filter of its own: {user}() has "
                f"keys in {found.name!r} too"
            )
        return found


def _is_coroutine_function(function: Function) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


def _refuse_function(function: Function) -> None:
    """Raise for what cannot be decorated."""
    if isinstance(function, (staticmethod, classmethod, property)):
        raise ConfigurationError(
            f"@once must stand below @{type(function).__name__}, next to the function"
        )
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(f"@once decorates a function, not {function!r:.80}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"@once decorates no generator: {name_of(function)}() returns before its work begins"
        )
