"""From items to the bytes that are hashed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast, overload

from .errors import ConfigurationError


def encode_item(item: object) -> bytes:
    r"""Return the bytes that are hashed: UTF-8 of a `str`, a `bytes` as it is.

    Raises:
        TypeError: For any other type.
        ConfigurationError: For a `str` that has no UTF-8 form (lone surrogates).

    >>> encode_item("é") == encode_item(b"\xc3\xa9")
    True
    """
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        try:
            return item.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"item {item[:80]!r} has a lone surrogate and no UTF-8 form; pass bytes"
            ) from error
    raise TypeError(f"item must be str or bytes, not {type(item).__name__} ({item!r:.80})")


def encode_items(items: Sequence[object], first: int = 0) -> Sequence[bytes]:
    r"""Return the encoded forms of many items, each made when it is asked for.

    Args:
        items: The items.
        first: The index of the first of them, for messages.

    Raises:
        TypeError: As `encode_item`, naming the index.
        ConfigurationError: As `encode_item`, naming the index, now or when it is asked for.

    >>> list(encode_items(["é", b"\xff"]))
    [b'\xc3\xa9', b'\xff']
    """
    kinds = set(map(type, items))
    if kinds == {bytes}:
        return cast("Sequence[bytes]", items)
    if kinds == {str}:
        return EncodedTexts(cast("Sequence[str]", items), first)
    return _encode_each(items, first)


class EncodedTexts(Sequence[bytes]):
    """The encoded forms of texts; some thousands at a time are quicker made than kept and read.

    Args:
        texts: The texts.
        first: The index of the first of them, for messages.
    """

    def __init__(self, texts: Sequence[str], first: int) -> None:
        """Keep the texts."""
        self._texts = texts
        self._first = first

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._texts)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> EncodedTexts: ...

    def __getitem__(self, index: int | slice) -> bytes | EncodedTexts:
        """Encode one, or return some of them (of a slice without a step)."""
        if isinstance(index, slice):
            start = index.indices(len(self))[0]
            return EncodedTexts(self._texts[index], self._first + start)
        return encode_item(self._texts[index])

    def __iter__(self) -> Iterator[bytes]:
        """Encode all of them."""
        try:
            return iter(list(map(str.encode, self._texts)))
        except UnicodeEncodeError:
            return iter(_encode_each(self._texts, self._first))


def _encode_each(items: Sequence[object], first: int) -> list[bytes]:
    encoded = []
    for index, item in enumerate(items, first):
        try:
            encoded.append(encode_item(item))
        except (TypeError, ConfigurationError) as error:
            raise type(error)(f"items[{index}]: {error}") from error
    return encoded
