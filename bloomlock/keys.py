"""Every key name, in one place. Pure.

The braces are a Redis Cluster hash tag: all keys of one shard live in one slot, and different
shards in different ones (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from .errors import ConfigurationError

DEFAULT_PREFIX = "bloomlock:"
MAX_NAME_BYTES = 1024
KEPT_KEYS = 4096
"""Shards whose keys of claims are kept: all of the largest filter."""
PREPARED_SECONDS = 24 * 3600
"""How long what is prepared outlives a client that dies; each write starts that time again."""

# The braces end a hash tag, the slash starts a shard number, the percent sign starts an escape.
_ESCAPES = {"%": "%25", "{": "%7B", "}": "%7D", "/": "%2F"}
_META_KEY = re.compile(r"\{(?P<name>[^{}/]+)\}:meta", re.DOTALL)


def check_name(name: object) -> str:
    try:
        if isinstance(name, str) and 0 < len(name.encode()) <= MAX_NAME_BYTES:
            return name
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"name must be a text that has a UTF-8 form, not {name!r:.80}"
        ) from error
    raise ConfigurationError(
        f"name must be a text of 1 to {MAX_NAME_BYTES} bytes of UTF-8, not {name!r:.80}"
    )


def check_prefix(prefix: object) -> str:
    if not isinstance(prefix, str) or "{" in prefix or "}" in prefix:
        raise ConfigurationError(f"prefix must be a text without braces, not {prefix!r}")
    return prefix


def escape(name: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in name)


def unescape(escaped: str) -> str:
    for character, code in reversed(_ESCAPES.items()):
        escaped = escaped.replace(code, character)
    return escaped


class FilterKeys:
    """The keys of one filter.

    >>> keys = FilterKeys("pages")
    >>> keys.meta, keys.bits(0), keys.bits(3)
    ('bloomlock:{pages}:meta', 'bloomlock:{pages}:bits', 'bloomlock:{pages/3}:bits')
    """

    def __init__(self, name: str, prefix: str = DEFAULT_PREFIX) -> None:
        self.name = check_name(name)
        self.prefix = check_prefix(prefix)
        self._tag = escape(name)

    @property
    def meta(self) -> str:
        return f"{self.prefix}{self.tag}:meta"

    @property
    def tag(self) -> str:
        return f"{{{self._tag}}}"

    def bits(self, shard: int) -> str:
        tag = f"{self._tag}/{shard}" if shard else self._tag
        return f"{self.prefix}{{{tag}}}:bits"


class LockKeys(NamedTuple):
    """The keys of one lock, all in one slot.

    >>> LockKeys.of("report")[:3]
    ('bloomlock:{report}:lock', 'bloomlock:{report}:lock:holders', 'bloomlock:{report}:lock:queue')

    Attributes:
        lock: The token of the holder, or `=read` while readers share the lock.
        holders: The holders of a shared lock.
        queue: The waiters.
        alive: Until when each waiter counts as alive.
        fence: The last fence.
    """

    lock: str
    holders: str
    queue: str
    alive: str
    fence: str

    @classmethod
    def of(cls, name: str, prefix: str = DEFAULT_PREFIX) -> LockKeys:
        return cls.at(f"{check_prefix(prefix)}{{{escape(check_name(name))}}}:lock")

    @classmethod
    def at(cls, lock: str) -> LockKeys:
        return cls(lock, *(f"{lock}:{part}" for part in cls._fields[1:]))


def stripe_fence(bits_key: str) -> str:
    # It goes with the filter, so it is none of a lock that has the filter's name.
    return f"{bits_key}:fence"


def stripe_keys(bits_key: str, stripe: int) -> LockKeys:
    keys = LockKeys.at(f"{bits_key.removesuffix('bits')}lock:{stripe}")
    return keys._replace(fence=stripe_fence(bits_key))


class ClaimKeys(NamedTuple):
    bits: str
    claims: str
    open: str
    failed: str
    lost: str
    counts: str
    discarded: str
    fence: str

    @classmethod
    @lru_cache(KEPT_KEYS)
    def of(cls, bits_key: str) -> ClaimKeys:
        first = f"{bits_key.removesuffix('bits')}claims"
        parts = (f"{first}:{part}" for part in ("open", "failed", "lost", "counts"))
        return cls._make((bits_key, first, *parts, discards_key(bits_key), f"{first}:fence"))


def discards_key(bits_key: str) -> str:
    return f"{bits_key}:discarded"


def prepared_key(bits_key: str, generation: int) -> str:
    # Each generation has its own, so what one client prepares another one cannot spoil.
    return f"{bits_key}:prepared:{generation:012x}"


def native_key(bits_key: str, generation: int) -> str:
    # Each generation has its own, so an update of another generation finds no key.
    return f"{bits_key}:native:{generation:012x}"


def merge_keys(bits_key: str) -> tuple[str, str]:
    return f"{bits_key}:merge", f"{bits_key}:merge:part"


def meta_pattern(prefix: str) -> str:
    literal = re.sub(r"([\\*?\[\]])", r"\\\1", check_prefix(prefix))
    return f"{literal}{{*}}:meta"


def name_of(meta_key: str, prefix: str = DEFAULT_PREFIX) -> str | None:
    match = _META_KEY.fullmatch(meta_key.removeprefix(prefix))
    if match is None:
        return None
    name = unescape(match["name"])
    try:
        # Of several ways to escape a name only one is ours.
        return name if FilterKeys(name, prefix).meta == meta_key else None
    except ConfigurationError:
        return None
