"""Key and seeds of a filter's hash functions. Pure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from numbers import Integral
from typing import TYPE_CHECKING, Any

from .errors import ConfigurationError
from .sizing import MAX_HASHES

if TYPE_CHECKING:
    from collections.abc import Callable

DIGEST_BYTES = 16
MIN_KEY_BYTES, MAX_KEY_BYTES = 16, 64
"""From 128 bits, too many to try them all, to as many as BLAKE2b takes."""

RANDOM_KEY_BYTES = 32

_HEXADECIMAL = re.compile("([0-9a-f]{2})+")


@dataclass(frozen=True, slots=True)
class HashKey:
    """The key that the offsets of a filter depend on.

    Attributes:
        check: A keyed hash of nothing in hexadecimal: the same for the same key.
        stored: Whether it is stored with the filter ("random"); else each client brings it.
        secret: The key; None where it was not brought (yet).
    """

    check: str
    stored: bool
    secret: bytes | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, secret: bytes, *, stored: bool) -> HashKey:
        check = blake2b(digest_size=DIGEST_BYTES, key=secret, person=b"bloomlock check")
        return cls(check.hexdigest(), stored, secret)

    @property
    def kind(self) -> str:
        return "random" if self.stored else "secret"

    @property
    def written(self) -> str:
        """What is stored of it: of a secret that users bring only the check."""
        secret = self.secret.hex() if self.stored and self.secret is not None else self.check
        return f"{self.kind}:{secret}"


def read_key(text: str) -> HashKey:
    kind, _, written = text.partition(":")
    if _HEXADECIMAL.fullmatch(written):
        if kind == "secret" and len(written) == 2 * DIGEST_BYTES:
            return HashKey(written, stored=False)
        if kind == "random" and MIN_KEY_BYTES <= len(written) // 2 <= MAX_KEY_BYTES:
            return HashKey.of(bytes.fromhex(written), stored=True)
    raise ConfigurationError(f"key must be random or secret and in hexadecimal, not {kind!r:.20}")


def check_key(key: object) -> HashKey | None:
    """Return the key of a new filter (True: a random one); no message holds any of it."""
    if key is None or isinstance(key, HashKey):
        return key
    if key is True:
        return HashKey.of(secrets.token_bytes(RANDOM_KEY_BYTES), stored=True)
    allowed = f"{MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes (or a str of as many in UTF-8), True, None"
    if not isinstance(key, (str, bytes)):
        raise ConfigurationError(f"key must be {allowed}, not {type(key).__name__}")
    try:
        data = key.encode() if isinstance(key, str) else key
    except UnicodeEncodeError:
        raise ConfigurationError(f"key must be {allowed}; this str has no UTF-8 form") from None
    if not MIN_KEY_BYTES <= len(data) <= MAX_KEY_BYTES:
        raise ConfigurationError(f"key must be {allowed}, not {len(data)} bytes")
    return HashKey.of(data, stored=False)


def key_difference(stored: HashKey | None, given: HashKey | None, *, opens: bool) -> str | None:
    """Return how the keys differ; one that `opens` need not ask for a random key."""
    if stored is None and given is None:
        return None
    if stored is None or given is None or stored.stored != given.stored:
        if opens and given is None and stored is not None and stored.stored:
            return None
        kinds = ["none" if key is None else f"a {key.kind} one" for key in (stored, given)]
        return f"key: stored {kinds[0]}, asked {kinds[1]}"
    if not stored.stored and stored.check != given.check:
        return "key: stored the check of another one than was given"
    return None


def keyed_digest(key: bytes) -> Callable[[bytes], bytes]:
    # A copy of what has taken in the key costs half of a fresh one for each item.
    fresh = blake2b(digest_size=DIGEST_BYTES, key=key)

    def digest(data: bytes) -> bytes:
        hashing = fresh.copy()
        hashing.update(data)
        return hashing.digest()

    return digest


def check_seeds(seeds: object) -> tuple[int, ...] | None:
    if seeds is None:
        return None
    allowed = f"1 to {MAX_HASHES} different whole numbers from 0 to 2^32 - 1, or None"
    checked: tuple[Any, ...] = ()
    if isinstance(seeds, Iterable) and not isinstance(seeds, (str, bytes)):
        checked = tuple(seeds)
    are_whole = all(isinstance(one, Integral) and not isinstance(one, bool) for one in checked)
    in_range = are_whole and all(0 <= int(one) < 2**32 for one in checked)
    if not in_range or not 1 <= len(checked) <= MAX_HASHES or len(set(checked)) != len(checked):
        raise ConfigurationError(f"seeds must be {allowed}, not {seeds!r}")
    return tuple(map(int, checked))
