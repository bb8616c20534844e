"""All suites by name: one module each.

A module has a docstring that explains it, `ABOUT`, a line for the command's help, and `ENTRIES`
where it has contenders. It has `stages`, which the engine measures, or `run` and `tables` of its
own.
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
    if hasattr(suite, "stages"):
        return engine.run(suite.stages(options), options, url, prefix)
    made: dict[str, Any] = suite.run(options, url, prefix)
    return made


def tables(result: dict[str, Any], *, short: bool = False) -> Iterator[Table]:
    """Make all tables of a result, or the few that go onto the page."""
    suite: Any = SUITES[result["suite"]]
    if hasattr(suite, "stages"):
        yield from (engine_tables.overview if short else engine_tables.tables)(result)
    else:
        yield from suite.tables(result)


def contender_names() -> list[str]:
    """Return the names of all contenders."""
    modules = SUITES.values()
    return sorted({entry.name for module in modules for entry in getattr(module, "ENTRIES", ())})
