"""What Scrapy's engine is asked that it has no public names for, in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import scrapy

from bloomlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection

    from scrapy import Request
    from scrapy.crawler import Crawler


class EngineView:
    """Knows which requests the engine has, and makes it ask its scheduler.

    Scrapy offers neither (scrapy/scrapy#7978). `ExecutionEngine._slot` has both in all versions
    from 2.14 on; `check` finds out before the crawl starts.

    Args:
        crawler: Whose engine it is.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @property
    def _slot(self) -> Any:
        return getattr(self._crawler.engine, "_slot", None)

    def check(self) -> None:
        """Raise ConfigurationError if this version of Scrapy has an engine of another form."""
        slot = self._slot
        for name in ("inprogress", "nextcall", "closing"):
            if not hasattr(slot, name):
                raise ConfigurationError(
                    f"scrapy_ext.Scheduler cannot be used with Scrapy {scrapy.__version__}: its "
                    f"engine has no _slot.{name}, which tells when a request is done"
                )

    @property
    def in_progress(self) -> Collection[Request]:
        """The requests of which the download, the callback or an item is not done."""
        slot = self._slot
        return slot.inprogress if slot is not None else ()

    def wake(self) -> None:
        """Make the engine ask for requests."""
        slot = self._slot
        if slot is not None and slot.closing is None:
            slot.nextcall.schedule()
