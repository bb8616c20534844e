"""A descriptor as it is stored: the fields of a hash, written and read. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from . import growth, native, sizing
from .descriptor import (
    GENERATION_BITS,
    ORIGINS,
    STATES,
    Descriptor,
    Formulas,
    Replaced,
    has_unknown_flags,
    is_header,
)
from .errors import ConfigurationError, FilterMismatchError
from .growth import Growth, check_growth
from .hash_keys import DIGEST_BYTES, MAX_KEY_BYTES, MIN_KEY_BYTES, HashKey, check_seeds
from .parameters import Wanted
from .sizing import (
    MAX_CAPACITY,
    MAX_HASHES,
    MAX_SHARD_BITS,
    MAX_SHARDS,
    Size,
    check_error_rate,
)
from .windows import read_window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT = 1

MAX_NATIVE_BITS = 2**37
"""More than 2^30 items take at any rate."""

_WHOLE = re.compile("[0-9]{1,18}")
_HEXADECIMAL = re.compile("([0-9a-f]{2})+")

NATIVE = "native"
REPLACES = "replaces"
ROOT = "root"
KEY = "key"
WINDOW = "window"
GROWTH = "growth"
UP_TO = "up_to"
SLICES = "slices"
OF_GROWTH = (GROWTH, UP_TO, SLICES)

FIELDS = (
    "format",
    "capacity",
    "error_rate",
    "shard_bits",
    "num_hashes",
    "shards",
    "seeds",
    "generation",
    "state",
    "origin",
    NATIVE,
    KEY,
    WINDOW,
    REPLACES,
    ROOT,
    *OF_GROWTH,
)
"""Of one that the server has itself `native`; of one with a key `key`: "random:" and the key, or
"secret:" and its check; of one with a time window its microseconds, a slash, its slices; of one
that is put in the place of another `replaces`; of a rebuilt one `root`. The last three of a filter
that grows; its slices are "m/k" each, and written to be compared."""


class DamagedDescriptorError(FilterMismatchError):
    """A descriptor that cannot be read: nobody knows how many shards the filter has."""


def encode(descriptor: Descriptor) -> dict[str, str]:
    """Return the fields of the descriptor's hash.

    >>> encode(Wanted.check(1000, 0.01).describe().with_generation(7, "ready"))["capacity"]
    '1000'
    """
    key = descriptor.key
    values = [
        FORMAT,
        descriptor.capacity,
        repr(descriptor.error_rate),
        descriptor.size.shard_bits,
        descriptor.size.num_hashes,
        descriptor.size.shards,
        ",".join(map(str, descriptor.seeds or ())),
        descriptor.generation,
        descriptor.state,
        descriptor.origin,
    ]
    fields = dict(zip(FIELDS, map(str, values), strict=False))
    if descriptor.formulas is native:
        fields[NATIVE] = "1"
    if key is not None:
        fields[KEY] = f"{key.kind}:{_written(key)}"
    if descriptor.window is not None:
        fields[WINDOW] = descriptor.window.written
    if descriptor.replaces is not None:
        fields[REPLACES] = ":".join(map(str, descriptor.replaces))
    if descriptor.root != descriptor.generation:
        fields[ROOT] = str(descriptor.root)
    if descriptor.growth is not None:
        fields[GROWTH] = str(descriptor.growth.factor)
        if descriptor.growth.up_to is not None:
            fields[UP_TO] = str(descriptor.growth.up_to)
        fields[SLICES] = _shapes(descriptor)
    return fields


def _shapes(descriptor: Descriptor) -> str:
    return ",".join(f"{part.bits}/{part.num_hashes}" for part in descriptor.slices)


def _written(key: HashKey) -> str:
    """Return what is stored of a key: a secret that users bring never is."""
    return key.secret.hex() if key.stored and key.secret is not None else key.check


def decode(name: str, values: Sequence[bytes | None]) -> Descriptor | None:
    """Return the descriptor from the values of FIELDS, None if there is none at all.

    Raises:
        FilterMismatchError: If it is of another format.
        DamagedDescriptorError: If it cannot be read, or contradicts itself.

    Cost: that of computing the size.
    """
    if all(value is None for value in values):
        return None
    refuse_other_format(name, values)
    try:
        return _decode_fields(_texts(values))
    except KeyError as error:
        why = f"its field {error} is missing"
    except (ValueError, ConfigurationError) as error:
        why = f"{error!s:.300}"
    raise DamagedDescriptorError(f"filter {name!r} has a damaged descriptor ({why})")


def refuse_other_format(name: str, values: Sequence[bytes | None]) -> None:
    """Raise FilterMismatchError if the values of FIELDS are of another format."""
    written = _texts(values).get("format", "")
    if _is_whole(written) and int(written) != FORMAT:
        raise FilterMismatchError(
            f"filter {name!r} is stored in format {written}, and this version of bloomlock "
            f"reads format {FORMAT} alone; upgrade bloomlock or make the filter anew"
        )


def refuse_unknown_flags(name: str, header: int) -> None:
    """Raise FilterMismatchError if a header carries flags that this version does not know."""
    if is_header(header) and has_unknown_flags(header):
        raise FilterMismatchError(
            f"filter {name!r} is in a state that only a newer version of bloomlock knows; "
            "upgrade bloomlock"
        )


def _texts(values: Sequence[bytes | None]) -> dict[str, str]:
    return {
        key: value.decode("utf-8", "replace")
        for key, value in zip(FIELDS, values, strict=True)
        if value is not None
    }


def _decode_fields(fields: Mapping[str, str]) -> Descriptor:
    _whole(fields, "format", FORMAT)
    formulas: Formulas = native if NATIVE in fields else sizing
    _check_kind(fields)
    size = Size(
        _whole(fields, "shard_bits", MAX_NATIVE_BITS if formulas is native else MAX_SHARD_BITS),
        _whole(fields, "num_hashes", MAX_HASHES),
        _whole(fields, "shards", MAX_SHARDS),
    )
    written = fields["seeds"].split(",") if fields["seeds"] else []
    seeds = check_seeds([int(seed) for seed in written if _is_whole(seed)] if written else None)
    if seeds and len(seeds) != len(written):
        raise ConfigurationError(f"seeds must be whole numbers, not {fields['seeds']!r:.80}")
    for field, known in (("state", STATES), ("origin", ORIGINS)):
        if fields[field] not in known:
            raise ConfigurationError(
                f"{field} must be {', '.join(known[:-1])} or {known[-1]} in this version of "
                f"bloomlock, not {fields[field]!r:.80}"
            )
    most = 2**GENERATION_BITS - 1
    generation = _whole(fields, "generation", most)
    descriptor = Descriptor(
        _whole(fields, "capacity", MAX_CAPACITY),
        check_error_rate(float(fields["error_rate"])),
        size,
        seeds,
        formulas=formulas,
        generation=generation,
        state=fields["state"],
        origin=fields["origin"],
        root=_whole(fields, ROOT, most) if ROOT in fields else generation,
        key=_key(fields[KEY]) if KEY in fields else None,
        window=read_window(fields[WINDOW]) if WINDOW in fields else None,
        replaces=_replaced(fields[REPLACES]) if REPLACES in fields else None,
        growth=_growth(fields),
    )
    # Other numbers would send each item to other bits than the writer's, without any error.
    expected = Wanted.of(descriptor).describe()
    if size != expected.size:
        raise ConfigurationError(
            f"shard_bits {size.shard_bits} and num_hashes {size.num_hashes} are not those of its "
            f"capacity and error_rate, {expected.size.shard_bits} and {expected.size.num_hashes}"
        )
    if descriptor.growth is not None and _shapes(expected) != fields[SLICES]:
        raise ConfigurationError(
            f"slices {fields[SLICES]:.80} are not those of its capacity, error_rate and growth, "
            f"{_shapes(expected):.80}"
        )
    return replace(descriptor, slices=expected.slices)


def _check_kind(fields: Mapping[str, str]) -> None:
    """Raise ConfigurationError for fields of which a filter has one at most."""
    for kinds in (
        [NATIVE in fields, WINDOW in fields, GROWTH in fields],
        [NATIVE in fields, KEY in fields, bool(fields["seeds"])],
        [GROWTH in fields, bool(fields["seeds"])],
    ):
        if sum(kinds) > 1:
            raise ConfigurationError(
                "of native, a window and growth a filter has one at most, and of native, a key and "
                "seeds as well; one that grows has no seeds"
            )


def _growth(fields: Mapping[str, str]) -> Growth | None:
    if GROWTH not in fields:
        return None
    up_to = _whole(fields, UP_TO, MAX_CAPACITY) if UP_TO in fields else None
    capacity = _whole(fields, "capacity", MAX_CAPACITY)
    return check_growth(_whole(fields, GROWTH, growth.MAX_GROWTH), up_to, capacity)


def _key(text: str) -> HashKey:
    kind, _, written = text.partition(":")
    if _HEXADECIMAL.fullmatch(written):
        if kind == "secret" and len(written) == 2 * DIGEST_BYTES:
            return HashKey(written, stored=False)
        if kind == "random" and MIN_KEY_BYTES <= len(written) // 2 <= MAX_KEY_BYTES:
            return HashKey.of(bytes.fromhex(written), stored=True)
    raise ConfigurationError(f"key must be random or secret and in hexadecimal, not {kind!r:.20}")


def _replaced(text: str) -> Replaced:
    """Return a filter that is replaced, from its number of shards and its header."""
    numbers = text.split(":")
    if len(numbers) != len(Replaced._fields) or not all(map(_is_long, numbers)):
        raise ConfigurationError(f"replaces must be two whole numbers, not {text!r:.80}")
    found = Replaced(*map(int, numbers))
    if not 1 <= found.shards <= MAX_SHARDS:
        raise ConfigurationError(f"replaces must name 1 to {MAX_SHARDS} shards, not {text!r:.80}")
    return found


def _whole(fields: Mapping[str, str], name: str, most: int) -> int:
    text = fields[name]
    if not _is_whole(text) or not 1 <= int(text) <= most:
        raise ConfigurationError(
            f"{name} must be a whole number from 1 to {most}, not {text!r:.80}"
        )
    return int(text)


def _is_long(text: str) -> bool:
    return re.fullmatch("[0-9]{1,20}", text) is not None


def _is_whole(text: str) -> bool:
    return _WHOLE.fullmatch(text) is not None
