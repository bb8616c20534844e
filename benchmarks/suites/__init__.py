"""All suites by name."""

from __future__ import annotations

from . import claims, dedup, filters, locks, losses, memory, scrapy

SUITES = {
    suite.name: suite
    for suite in (
        filters.SINGLE,
        filters.BATCH,
        filters.SIZES,
        memory.SUITE,
        filters.WINDOWS,
        filters.TASKS,
        dedup.SUITE,
        losses.SUITE,
        locks.SUITE,
        claims.SUITE,
        scrapy.SUITE,
        filters.SCALE,
    )
}
