"""The requests of a process, and their form in the queue: JSON, or else a pickle."""

from __future__ import annotations

import json
import logging
import pickle
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from scrapy import Request
from scrapy.utils.request import request_from_dict

from scrapy_ext.crawl_state import NO_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from scrapy import Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger("bloomlock.scrapy")

MOST_RECENT = 200_000
PICKLE = b"P"
_TAG = "bloomlock_page"
_DEFAULTS = Request("data:,").to_dict()
del _DEFAULTS["url"]
_SIMPLE = (str, int, float, bool, type(None))
_SEQUENCES = (tuple, set, frozenset)
# A dict whose only key is one of these, or "$bytes", stands for a value that JSON does not have.
_TAGS: dict[str, Any] = {f"${kind.__name__}": kind for kind in (*_SEQUENCES, dict)}


@dataclass(frozen=True, slots=True)
class RequestCodec:
    """Writes and reads the requests of a spider, whose methods are the callbacks.

    With `use_pickle` what JSON cannot hold is pickled, and pickles are read; `on_pickled` is called
    with the name of the type for which a request was pickled.
    """

    spider: Spider | None
    use_pickle: bool = True
    on_pickled: Callable[[str], None] = lambda _: None

    def encode(self, request: Request) -> bytes:
        """Return the entry of a request; ValueError if it can only stay in this process."""
        try:
            fields = request.to_dict(spider=self.spider)
            if "_class" in fields:
                # Another process could not make one whose class is found by no name, or takes
                # other arguments.
                request_from_dict(fields, spider=self.spider)
        # Properties of the spider are read, and they and the class may raise anything.
        except Exception as error:
            raise ValueError(str(error)) from error
        if "_class" not in fields:
            # Another class may have other defaults.
            fields = {key: one for key, one in fields.items() if one != _DEFAULTS.get(key)}
        try:
            return json.dumps(_tagged(fields), separators=(",", ":")).encode()
        except (TypeError, RecursionError) as error:
            kind = str(error)
        if not self.use_pickle:
            raise ValueError(f"JSON cannot hold {kind}, and BLOOMLOCK_PICKLE is False")
        try:
            data = PICKLE + pickle.dumps(fields, protocol=4)
        # A value of the project's may raise anything.
        except Exception as error:
            raise ValueError(str(error)) from error
        self.on_pickled(kind)
        return data

    def decode(self, data: bytes) -> Request:
        """Return the request of an entry; ValueError, or anything that unpickling may raise."""
        if not data.startswith(PICKLE):
            fields = json.loads(data, object_hook=_untagged)
        elif self.use_pickle:
            fields = pickle.loads(data[len(PICKLE) :])  # noqa: S301 - as above
        else:
            raise ValueError("the entry is a pickle, and BLOOMLOCK_PICKLE is False")
        return request_from_dict(fields, spider=self.spider)


def to_pickle(data: bytes) -> bytes:
    """Return an entry as scrapy-redis keeps requests; nothing is unpickled."""
    if data.startswith(PICKLE):
        return data[len(PICKLE) :]
    return pickle.dumps({**_DEFAULTS, **json.loads(data, object_hook=_untagged)}, protocol=4)


def url_of(data: bytes) -> str:
    """Return the URL of an entry; a pickle is not loaded."""
    try:
        return str(json.loads(data)["url"])
    except (ValueError, KeyError, TypeError):
        return "(pickled)" if data.startswith(PICKLE) else repr(data[:100])


def _tagged(value: Any) -> Any:
    # Types are compared exactly: a subclass would come back as another type.
    kind = type(value)
    if kind in _SIMPLE:
        return value
    if kind is list:
        return [_tagged(one) for one in value]
    if kind is bytes:
        return {"$bytes": value.decode("latin-1")}
    if kind in _SEQUENCES:
        return {f"${kind.__name__}": [_tagged(one) for one in value]}
    if kind is not dict:
        raise TypeError(kind.__qualname__)
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _tagged(one) for key, one in value.items()}
    return {"$dict": [[_tagged(key), _tagged(one)] for key, one in value.items()]}


def _untagged(fields: dict[str, Any]) -> Any:
    if len(fields) == 1:
        ((key, value),) = fields.items()
        if key == "$bytes":
            return value.encode("latin-1")
        if key in _TAGS:
            return _TAGS[key](value)
    return fields


class Recent(dict[Any, int]):
    """Counts the last 200,000 keys; drops the oldest first."""

    def add(self, key: bytes | str) -> int:
        """Count a key; return its count before."""
        before = self.pop(key, 0)
        self[key] = before + 1
        if len(self) > MOST_RECENT:
            del self[next(iter(self))]
        return before


def leads_back(request: Request, fingerprint: Callable[[Request], bytes]) -> bool:
    """Return whether a redirect leads back to a request that it comes from.

    Sites answer so that set a cookie first. REDIRECT_MAX_TIMES ends a circle.
    """
    urls = request.meta.get("redirect_urls")
    if not isinstance(urls, list):
        return False
    own = fingerprint(request)
    return any(fingerprint(request.replace(url=url)) == own for url in dict.fromkeys(urls))


def is_start_request(request: Request) -> bool:
    """Return whether it is a start request, and not a copy made from one that was fetched."""
    return bool(request.meta.get("is_start_request") and "bloomlock_begun" not in request.meta)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Page:
    """A request on its way to the queue, or one that this process has taken and not finished.

    It is finished with its callback, its items, and its child requests that stay in this process.
    """

    request: Any
    """A Request; None if its entry is unreadable."""
    host: str
    """The download slot; in mode "f" the error."""
    fingerprint: bytes = b""
    mode: str = "a"
    """How the server filters it, see scripts/crawl_exchange.lua."""
    entry: bytes = b""
    """Its form in the queue; empty if it stays in this process."""
    id: str = ""
    """The key under which the server keeps it as taken; empty if it stays in this process."""
    parent: Page | None = None
    """The page that waits for this request, which stays in this process."""
    error: str | None = None
    is_over: bool = False
    children: int = 0
    """The number of unfinished requests that name this page as parent."""
    gave_item: bool = False
    records: Sequence[bytes] = ()
    """Fingerprints for the filter of delivered pages, when it is done."""

    def words(self) -> tuple[bytes, bytes, bytes]:
        head = self.host.replace("\0", " ").encode(errors="replace")
        if self.request is not None:
            # Hex digits sort as numbers do; the highest priority comes first.
            priority = min(max(NO_PRIORITY - self.request.priority, 0), 2**32 - 2)
            head += b"\0%08x%d" % (priority, is_start_request(self.request))
        return self.mode.encode(), head, self.entry


class Pages(dict["Request", Page]):
    """The open pages of this process by request; `on_end` is called with each that has ended.

    A page ends when the engine is done with it and all its children have ended: a process that is
    killed before leaves it open, and the next one makes the children again. `maker_of` has the page
    whose callback made a request; requests that the downloader makes have none. `known` has the
    fingerprints that this process knows to be in the filter, or keeps itself.
    """

    def __init__(
        self, crawler: Crawler, on_end: Callable[[Page], None], *, use_pickle: bool
    ) -> None:
        super().__init__()
        self.maker_of: WeakKeyDictionary[Request, Page] = WeakKeyDictionary()
        self.fingerprint = crawler.request_fingerprinter.fingerprint
        self.known = Recent()
        self.codec = RequestCodec(crawler.spider, use_pickle, self._pickled)
        self._crawler = crawler
        self._on_end = on_end
        self._count: Any = crawler.stats.inc_value
        self._by_tag: WeakValueDictionary[str, Page] = WeakValueDictionary()
        self._starts = Recent()
        self._logged = Recent()

    # Requests that go to the queue.

    def is_known(self, request: Request) -> bool:
        """Return whether this process knows that a request is a duplicate."""
        return self.mode_of(request) == "n" and self.fingerprint(request) in self.known

    def mode_of(self, request: Request) -> str:
        """Return how the server filters a request, see scripts/crawl_exchange.lua."""
        if request.dont_filter:
            return "a"
        if request.meta.get("bloomlock_filter") is False:
            return "r"
        is_redirect = "redirect_urls" in request.meta and request not in self.maker_of
        return "r" if is_redirect and leads_back(request, self.fingerprint) else "n"

    def of(self, request: Request, *, is_again: bool = False) -> Page:
        """Return the page of a request; one that cannot be serialized stays in this process."""
        mode, fingerprint = self.mode_of(request), self.fingerprint(request)
        if request.dont_filter and is_start_request(request):
            # Every process makes the same start requests, and one of them shall queue them. Equal
            # ones may differ in cookies, so the first of each process counts as one, and so on.
            number = 0 if is_again else self._starts.add(fingerprint)
            mode, fingerprint = "n", b"start:%d:%b" % (number, fingerprint)
        # `meta` may name a slot by a number.
        host = str(self._crawler.engine.downloader.get_slot_key(request))
        if mode == "n" and is_again:
            mode = "r"
        try:
            return Page(request, host, fingerprint, mode, self.codec.encode(request))
        except ValueError as error:
            parent = self._stays_here(request, error)
        if mode == "n":
            mode = "l"
            self.known.add(fingerprint)
        return Page(request, host, fingerprint, mode, parent=parent)

    def again(self, entry: bytes) -> Page:
        """Return the page of an entry of an earlier queue; the filter does not drop it."""
        try:
            return self.of(self.codec.decode(entry), is_again=True)
        # An entry may be from another version of the spider.
        except Exception as error:  # noqa: BLE001
            return self.unreadable(entry, error)

    def unreadable(self, data: bytes, error: Exception) -> Page:
        """Return a page that the server keeps among the failed; its data makes no request."""
        self._count("bloomlock/failed")
        return Page(None, f"{type(error).__name__}: {error}", b"-", "f", data)

    def _stays_here(self, request: Request, error: Exception) -> Page | None:
        """Return the page that waits for a request that stays in this process, if any."""
        self._count("scheduler/unserializable")
        parent = self.maker_of.get(request)
        made_of = self._by_tag.get(request.meta.get(_TAG, ""))
        if parent is None and made_of is not None and (made_of.children or not made_of.is_over):
            parent = self.maker_of[request] = made_of
        fate = "no page made it, so it is lost if this process is killed"
        if parent is not None:
            parent.children += 1
            fate = "the page that made it stays open until it is done"
        callback = getattr(request.callback, "__qualname__", repr(request.callback))
        if not self._logged.add(callback):
            logger.warning(
                "%s cannot be serialized (%s) and stays in this process; %s. It is logged once for "
                "the callback %s.",
                *(request, error, fate, callback),
            )
        return parent

    def _pickled(self, kind: str) -> None:
        self._count("bloomlock/pickled")
        if not self._logged.add(f"pickled {kind}"):
            logger.info("Requests with a %s are pickled: JSON has no such type.", kind)

    # Requests that the engine is at.

    def begin(self, page: Page) -> None:
        self[page.request] = page
        if not page.id:
            # The downloader copies `meta` into what it makes of a request, a retry or a redirect.
            page.request.meta[_TAG] = tag = secrets.token_hex(8)
            self._by_tag[tag] = page

    def note_made(self, requests: Iterable[Request], by: Request, *, has_items: bool) -> None:
        if by in self:
            self.maker_of.update(dict.fromkeys(requests, self[by]))
            self[by].gave_item |= has_items

    def fail(self, request: Request, why: str) -> None:
        if request in self:
            self[request].error = why

    def collect(self, in_progress: Collection[Request]) -> None:
        """End the pages that the engine has finished."""
        for request in [one for one in self if one not in in_progress]:
            page = self.pop(request)
            page.is_over = True
            self.settle(page)

    def settle(self, page: Page) -> None:
        """End a page if the engine has finished it and all its children have ended."""
        if not page.is_over or page.children:
            return
        self._on_end(page)
        if (parent := page.parent) is not None:
            if page.error is not None:
                parent.error = f"{page.request}, which it made, failed: {page.error}"
            self.child_ended(parent)

    def child_ended(self, parent: Page) -> None:
        """Count one child less: it has ended, or is a duplicate."""
        parent.children -= 1
        self.settle(parent)
