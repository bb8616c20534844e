"""Blocking calls beside the reactor, whichever reactor it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from scrapy.utils.asyncio import is_asyncio_available
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.threads import deferToThread

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def run_in_thread(call: Callable[[], T]) -> T:
    """Make a blocking call in a thread of a pool, and return or raise what it does.

    To be awaited in the reactor's thread: by asyncio where Scrapy runs on it, with a Twisted
    reactor or without one, else by the reactor. A caller that is cancelled does not end the call.
    """
    if is_asyncio_available():
        return await asyncio.to_thread(call)
    return await maybe_deferred_to_future(deferToThread(call))
