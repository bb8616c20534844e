"""What a call of a function is known by: values chosen from its arguments, as an item."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from hashlib import blake2b
from itertools import pairwise
from typing import Any, TypeAlias
from uuid import UUID

from bloomlock.errors import ConfigurationError

Item = str | bytes
Selector: TypeAlias = "str | Sequence[str] | Callable[..., object]"
"""A dotted path, several of them, or a function of the same arguments."""

ALLOWED = "a str, bytes, an int or a UUID"
DIGEST_BYTES = 16


class Selection:
    """Chooses values from the arguments of a function.

    Args:
        option: What the parameter is called where the user gives it.
        selector: A dotted path, whose first part is a parameter of the function and each other
            one an attribute or the key of a mapping; several paths; or a function that is called
            with the same arguments and returns a value or a tuple of them.
        function: The function.

    Raises:
        ConfigurationError: If the selector is none, or names no parameter of the function.

    >>> def charge(order, currency="EUR"): ...
    >>> paths = Selection("key", ["order.id", "currency"], charge)
    >>> paths.values(({"id": 7},), {})
    [7, 'EUR']
    """

    def __init__(self, option: str, selector: Selector, function: Callable[..., object]) -> None:
        self._option = option
        self._function = name_of(function)
        try:
            self._signature = inspect.signature(function)
        except ValueError as error:
            raise ConfigurationError(f"{option} cannot be found: {error}") from error
        self._call = selector if callable(selector) else None
        self._paths = () if callable(selector) else self._check(selector)

    def _check(self, selector: str | Sequence[str]) -> Sequence[str]:
        paths = (selector,) if isinstance(selector, str) else selector
        if not (
            isinstance(paths, (tuple, list))
            and paths
            and all(isinstance(path, str) and all(path.split(".")) for path in paths)
        ):
            raise ConfigurationError(
                f'{self._option} must be a path such as "order.id", several of them, or a '
                f"function, not {selector!r:.80}"
            )
        parameters = self._signature.parameters
        takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        for path in paths:
            if path.partition(".")[0] not in parameters and not takes_any:
                raise ConfigurationError(
                    f"{self._option} {path!r} must begin with a parameter of "
                    f"{self._function}(), which has {', '.join(parameters) or 'none'}"
                )
        return tuple(paths)

    def values(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[object]:
        """Return the values in a call.

        Raises:
            ConfigurationError: If the arguments have not what a path leads to.
            TypeError: If they are no arguments of the function.
        """
        if self._call is not None:
            found = self._call(*args, **kwargs)
            return list(found) if isinstance(found, tuple) else [found]
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        named: dict[str, Any] = dict(bound.arguments)
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                named |= named.pop(name)
        return [self._follow(path, named) for path in self._paths]

    def _follow(self, path: str, value: Any) -> object:
        before = ["the arguments", *path.split(".")]
        for place, part in pairwise(before):
            try:
                value = value[part] if isinstance(value, Mapping) else getattr(value, part)
            except (KeyError, AttributeError) as error:
                where = f"{self._option} {path!r} of {self._function}()"
                raise ConfigurationError(f"{where}: there is no {part!r} in {place}") from error
        return value

    def item(self, args: tuple[object, ...], kwargs: Mapping[str, object], *before: str) -> Item:
        """Return what a call is known by: a single value as it is, several as netstrings.

        Args:
            args: Of the call.
            kwargs: Of the call.
            before: Values that stand before.

        Raises:
            ConfigurationError: As `values`.
            TypeError: If a value is not one of ALLOWED.

        >>> def charge(order, currency="EUR"): ...
        >>> Selection("key", "order", charge).item((7,), {})
        '7'
        >>> Selection("key", ["order", "currency"], charge).item((7,), {})
        '1:7,3:EUR,'
        """
        found = [*before, *(self._plain(one) for one in self.values(args, kwargs))]
        return found[0] if len(found) == 1 else netstrings(found)

    def _plain(self, value: object) -> Item:
        if isinstance(value, (str, bytes)):
            return value
        if isinstance(value, UUID) or (isinstance(value, int) and not isinstance(value, bool)):
            return str(value if isinstance(value, UUID) else int(value))
        raise TypeError(
            f"{self._option} of {self._function}() must be {ALLOWED}, not {value!r:.80}"
        )

    def digest(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """Return 32 characters that are the same for the same values, as JSON has them.

        Raises:
            ConfigurationError: As `values`.
            TypeError: If JSON has no form for a value.
        """
        try:
            text = json.dumps(self.values(args, kwargs), sort_keys=True, default=_json_form)
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise TypeError(
                f"{self._option} of {self._function}() has a value without a form in JSON: {error}"
            ) from error
        return blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def netstrings(parts: Sequence[Item]) -> Item:
    r"""Return several values as one, which no other values give (cr.yp.to/proto/netstrings.txt).

    >>> netstrings(["a", b"\xff"])
    b'1:a,1:\xff,'
    """
    data = [part if isinstance(part, bytes) else part.encode() for part in parts]
    whole = b"".join(b"%d:%b," % (len(part), part) for part in data)
    return whole.decode() if all(isinstance(part, str) for part in parts) else whole


def name_of(function: Callable[..., object]) -> str:
    """Return what messages call a function."""
    name: str = getattr(function, "__qualname__", None) or repr(function)
    return name


def _json_form(value: object) -> object:
    """Return what stands for a value that JSON does not know."""
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, (UUID, Decimal)):
        return [type(value).__name__, str(value)]
    if hasattr(value, "isoformat"):  # dates and times
        return [type(value).__name__, value.isoformat()]
    raise TypeError(f"{value!r:.80}")
