"""Requests as they stand in the queue: JSON, or a pickle of what JSON cannot hold."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.utils.request import request_from_dict

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Spider

_PICKLE = b"P"
_DEFAULTS = Request("data:,").to_dict()
del _DEFAULTS["url"]
_SIMPLE = (str, int, float, bool, type(None))
# A dict of one of these keys stands for a value that JSON does not have.
_TAGS: dict[str, Callable[[Any], Any]] = {
    "$bytes": lambda text: text.encode("latin-1"),
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$dict": dict,
}
_SEQUENCES: dict[Any, str] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}


class UnserializableError(ValueError):
    """A request has no form in the queue."""


class RequestCodec:
    """Writes and reads the requests of a spider, whose methods are the callbacks.

    With `use_pickle` what JSON cannot hold is pickled, and pickles are read; `on_pickled` is called
    with the name of the type for which a request was pickled.
    """

    def __init__(
        self,
        spider: Spider | None,
        *,
        use_pickle: bool = True,
        on_pickled: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spider = spider
        self._use_pickle = use_pickle
        self._on_pickled = on_pickled

    def encode(self, request: Request) -> bytes:
        try:
            fields = request.to_dict(spider=self._spider)
        except ValueError as error:
            raise UnserializableError(str(error)) from error
        if "_class" not in fields:
            # Another class may have other defaults.
            fields = {key: one for key, one in fields.items() if one != _DEFAULTS.get(key, one)} | {
                "url": fields["url"]
            }
        try:
            tagged = {key: _tagged(value) for key, value in fields.items() if key != "headers"}
        except (TypeError, RecursionError) as error:
            return self._pickled(fields, str(error))
        if headers := fields.get("headers"):
            # Scrapy's are bytes; nearly all requests have a referer.
            tagged["headers"] = {
                name.decode("latin-1"): [value.decode("latin-1") for value in values]
                for name, values in headers.items()
            }
        return json.dumps(tagged, separators=(",", ":")).encode()

    def _pickled(self, fields: dict[str, Any], kind: str) -> bytes:
        if not self._use_pickle:
            raise UnserializableError(f"JSON cannot hold {kind}, and BLOOMLOCK_PICKLE is False")
        try:
            data = pickle.dumps(fields, protocol=4)
        # A value of the project's may raise anything.
        except Exception as error:
            raise UnserializableError(str(error)) from error
        self._on_pickled(kind)
        return _PICKLE + data

    def decode(self, data: bytes) -> Request:
        """Return the request of an entry; ValueError, or anything that unpickling may raise."""
        if not data.startswith(_PICKLE):
            fields = _from_json(data)
        elif self._use_pickle:
            fields = pickle.loads(data[len(_PICKLE) :])  # noqa: S301 - as above
        else:
            raise ValueError("the entry is a pickle, and BLOOMLOCK_PICKLE is False")
        return request_from_dict(fields, spider=self._spider)


def from_pickle(data: bytes) -> bytes:
    # scrapy-redis keeps requests as pickled dicts.
    return _PICKLE + data


def to_pickle(data: bytes) -> bytes:
    """Return an entry as scrapy-redis keeps requests; nothing is unpickled."""
    if data.startswith(_PICKLE):
        return data[len(_PICKLE) :]
    return pickle.dumps({**_DEFAULTS, **_from_json(data)}, protocol=4)


def url_of(data: bytes) -> str:
    """Return the URL of an entry; of a pickle, that is not loaded, only what it is."""
    try:
        return str(json.loads(data)["url"])
    except (ValueError, KeyError, TypeError):
        return "(pickled)" if data.startswith(_PICKLE) else repr(data[:100])


def _from_json(data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(data, object_hook=_untagged)
    fields["headers"] = {
        name.encode("latin-1"): [value.encode("latin-1") for value in values]
        for name, values in fields.get("headers", {}).items()
    }
    return fields


def _tagged(value: Any) -> Any:
    # Types are compared exactly: a subclass would come back as another type.
    kind = type(value)
    if kind in _SIMPLE:
        return value
    if kind is list:
        return [_tagged(one) for one in value]
    if kind is bytes:
        return {"$bytes": value.decode("latin-1")}
    if kind in _SEQUENCES:
        return {_SEQUENCES[kind]: [_tagged(one) for one in value]}
    if kind is not dict:
        raise TypeError(kind.__qualname__)
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _tagged(one) for key, one in value.items()}
    return {"$dict": [[_tagged(key), _tagged(one)] for key, one in value.items()]}


def _untagged(fields: dict[str, Any]) -> Any:
    if len(fields) == 1:
        ((key, value),) = fields.items()
        if key in _TAGS:
            return _TAGS[key](value)
    return fields
