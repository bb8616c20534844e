"""All suites by name: one module each.

A module has a docstring that explains it, `ABOUT`, a line for the command's help, and `ENTRIES`
where it has contenders. It has `stages`, which the engine measures, and `PARTS` if some of it has
servers and processes of its own; or `run` and `tables` of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import engine
from benchmarks import tables as engine_tables

from . import (
    batch,
    busy,
    claims,
    clients,
    dedup,
    hashes,
    local,
    locks,
    log,
    losses,
    memory,
    micro,
    replay,
    rtt,
    scale,
    scrapy,
    single,
    sizes,
    tasks,
    winners,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from rich.table import Table

    from benchmarks.options import Options
    from benchmarks.scale_parts import Part

SUITES: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        single,
        batch,
        sizes,
        scale,
        clients,
        busy,
        rtt,
        tasks,
        replay,
        local,
        dedup,
        memory,
        hashes,
        log,
        micro,
        winners,
        losses,
        locks,
        claims,
        scrapy,
    )
}


def run(name: str, options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure a suite; return what was measured as plain data."""
    suite: Any = SUITES[name]
    if not hasattr(suite, "stages"):
        made: dict[str, Any] = suite.run(options, url, prefix)
        return made
    measured = engine.run(suite.stages(options), options, url, prefix)
    for part in _parts(suite):
        if not options.contenders or part.name in options.contenders:
            measured[part.name] = part.run(options, url, prefix)
    return measured


def _parts(suite: Any) -> tuple[Part, ...]:
    parts: tuple[Part, ...] = getattr(suite, "PARTS", ())
    return parts


def tables(result: dict[str, Any], *, short: bool = False) -> Iterator[Table]:
    """Make all tables of a result, or the few that go onto the page."""
    suite: Any = SUITES[result["suite"]]
    if hasattr(suite, "stages"):
        yield from (engine_tables.overview if short else engine_tables.tables)(result)
        for part in _parts(suite):
            if rows := result.get(part.name):
                yield from part.tables(rows)
    else:
        yield from suite.tables(result)


def contender_names() -> list[str]:
    """Return the names of all contenders."""
    modules = SUITES.values()
    entries = {entry.name for module in modules for entry in getattr(module, "ENTRIES", ())}
    return sorted(entries | {part.name for module in modules for part in _parts(module)})
