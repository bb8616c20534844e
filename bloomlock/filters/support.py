"""Which strategies, and which kinds of filters, have which feature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bloomlock.errors import ConfigurationError

if TYPE_CHECKING:
    from bloomlock.descriptor import Descriptor

_SCRIPTED = ("atomic", "lua")
_BITMAPS = (*_SCRIPTED, "transaction", "lock", "pipeline")

WINDOW: Final = "window="
GROWTH: Final = "a filter that grows (on_full='grow')"
DISCARDS: Final = "a filter with discarded items (discard)"
NATIVE: Final = "strategy='native', whose bits the server places"
_KINDS = (WINDOW, GROWTH, DISCARDS)

CLAIMS: Final = "claims"
SCRIPTS: Final = "scripts"
DISCARD: Final = "discard() and discard_many()"
BITMAP: Final = "route='bitmap'"
REBUILD: Final = "rebuild()"
TO_MEMORY: Final = "to_memory()"
FROM_MEMORY: Final = "update() from a MemoryBloomFilter"
FROM_FILTER: Final = "update() from another filter"
COPY: Final = "copy() and copy_to()"
EXPORT: Final = "export_file()"
IMPORT: Final = "import_file()"
IN_PROCESS: Final = "a filter in the process"


class Support(NamedTuple):
    """The strategies, and the kinds of filters beside the plain one, that have a feature."""

    strategies: tuple[str, ...]
    kinds: tuple[str, ...] = ()


SUPPORT = {
    WINDOW: Support(_SCRIPTED, (DISCARDS,)),
    GROWTH: Support(_SCRIPTED, (DISCARDS,)),
    DISCARDS: Support(_SCRIPTED, (WINDOW, GROWTH)),
    DISCARD: Support(_SCRIPTED, _KINDS),
    CLAIMS: Support(_SCRIPTED, _KINDS),
    SCRIPTS: Support(_SCRIPTED, _KINDS),
    BITMAP: Support(_SCRIPTED, (GROWTH, DISCARDS)),
    REBUILD: Support(_SCRIPTED, (GROWTH, DISCARDS)),
    TO_MEMORY: Support(_SCRIPTED),
    FROM_MEMORY: Support(_SCRIPTED),
    FROM_FILTER: Support(_SCRIPTED),
    COPY: Support(_BITMAPS, _KINDS),
    EXPORT: Support(_BITMAPS, _KINDS),
    IMPORT: Support(_BITMAPS, _KINDS),
    IN_PROCESS: Support(_BITMAPS),
}


def check_support(
    feature: str,
    strategy: str | None,
    descriptor: Descriptor | None = None,
    *,
    discards: bool = False,
) -> None:
    """Raise ConfigurationError if a filter cannot have a feature, naming what excludes it."""
    strategies, kinds = SUPPORT[feature]
    if strategy is not None and strategy not in strategies:
        *others, last = map(repr, strategies)
        known = f"{', '.join(others)} or {last}" if others else last
        raise ConfigurationError(f"strategy must be {known} for {feature}, not {strategy!r}")
    has = {DISCARDS} if discards else set()
    if descriptor is not None:
        own = {WINDOW: descriptor.window, GROWTH: descriptor.growth, NATIVE: descriptor.native}
        has |= {kind for kind, value in own.items() if value}
    if not has <= {*kinds}:
        raise ConfigurationError(f"{feature} is not possible with {min(has - {*kinds})}")
