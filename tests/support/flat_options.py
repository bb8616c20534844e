"""The options of a filter in one flat dictionary, as tables and random models draw them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bloomlock import Growth, NearCache, Window

if TYPE_CHECKING:
    from collections.abc import Mapping


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a filter: what belongs together is one value."""
    made = dict(options)
    parts = {name: made.pop(name) for name in ("slices", "refresh") if name in made}
    if "window" in made:
        made["window"] = Window(made["window"], **parts)
    else:
        made.update(parts)  # of `open`
    parts = {name: made.pop(old) for old, name in GROWTH.items() if old in made}
    if parts:
        made["on_full"] = Growth(**parts)
    if "max_staleness" in made:
        made["near_cache"] = NearCache(made.get("near_cache", 0), made.pop("max_staleness"))
    return made


GROWTH = {"growth": "factor", "up_to": "up_to"}
