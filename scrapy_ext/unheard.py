"""Whether the engine may be spared the duplicates of a page, as nothing would notice them there.

It sends two signals for each, one before its scheduler asks the duplicates filter and one after. On
pages of 185 links, nearly all of them duplicates, that is a tenth of the processor time of a crawl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydispatch.dispatcher import getAllReceivers, liveReceivers
from scrapy import signals
from scrapy.core.engine import ExecutionEngine
from scrapy.core.scheduler import Scheduler
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware

if TYPE_CHECKING:
    from collections.abc import Collection

    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter


def asks_only(engine: Any, dupefilter: BaseDupeFilter) -> bool:
    """Return whether all that becomes of a duplicate in the engine is what its filter does.

    (Scrapy has no public way to ask for the scheduler.)
    """
    scheduler = getattr(getattr(engine, "_slot", None), "scheduler", None)
    return (
        type(engine) is ExecutionEngine
        and isinstance(scheduler, Scheduler)
        and type(scheduler).enqueue_request is Scheduler.enqueue_request
        and scheduler.df is dupefilter
    )


def are_unheard(crawler: Crawler, deaf: Collection[Any]) -> bool:
    """Return whether only some receivers get the signals of a duplicate.

    Args:
        crawler: Whose signals they are.
        deaf: Receivers to which a duplicate makes no difference.
    """
    sender = crawler.signals.sender
    return all(
        receiver in deaf
        for signal in (signals.request_scheduled, signals.request_dropped)
        for receiver in liveReceivers(getAllReceivers(sender, signal))
    )


def receivers_of(offsite: OffsiteMiddleware | None) -> list[Any]:
    """Return the receivers of Scrapy's own middleware, which let a request on site be."""
    if offsite is None:
        return []
    kind, own = type(offsite), OffsiteMiddleware
    # The one calls the other.
    is_own = kind.request_scheduled is own.request_scheduled and (
        kind.process_request is own.process_request
    )
    return [offsite.request_scheduled] if is_own else []
