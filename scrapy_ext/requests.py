"""Requests: as they stand in the queue (JSON, or a pickle of what JSON cannot hold), and here."""

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

from scrapy_ext.crawl_state import Mode, Push, is_start_request

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from scrapy import Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger("bloomlock.scrapy")

MOST_RECENT = 200_000
_PICKLE = b"P"
_TAG = "bloomlock_page"
_DEFAULTS = Request("data:,").to_dict()
del _DEFAULTS["url"]
_SIMPLE = (str, int, float, bool, type(None))
# A dict of one of these keys stands for a value that JSON does not have.
_TAGS: dict[str, Callable[[Any], Any]] = {
    "$bytes": lambda text: text.encode("latin-1"),
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$dict": dict,
}
_SEQUENCES: dict[Any, str] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}


class RequestCodec:
    """Writes and reads the requests of a spider, whose methods are the callbacks.

    With `use_pickle` what JSON cannot hold is pickled, and pickles are read; `on_pickled` is called
    with the name of the type for which a request was pickled.
    """

    def __init__(
        self,
        spider: Spider | None,
        *,
        use_pickle: bool = True,
        on_pickled: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spider = spider
        self._use_pickle = use_pickle
        self._on_pickled = on_pickled

    def encode(self, request: Request) -> bytes:
        """Return the entry of a request; ValueError if it has none and stays in this process."""
        try:
            fields = request.to_dict(spider=self._spider)
            if "_class" in fields:
                # Another process could not make one whose class is found by no name, or takes
                # other arguments.
                request_from_dict(fields, spider=self._spider)
        # Properties of the spider are read, and they and the class may raise anything.
        except Exception as error:
            raise ValueError(str(error)) from error
        if "_class" not in fields:
            # Another class may have other defaults.
            fields = {key: one for key, one in fields.items() if one != _DEFAULTS.get(key, one)} | {
                "url": fields["url"]
            }
        try:
            tagged = {key: _tagged(value) for key, value in fields.items() if key != "headers"}
        except (TypeError, RecursionError) as error:
            return self._pickled(fields, str(error))
        if headers := fields.get("headers"):
            # Scrapy's are bytes; nearly all requests have a referer.
            tagged["headers"] = {
                name.decode("latin-1"): [value.decode("latin-1") for value in values]
                for name, values in headers.items()
            }
        return json.dumps(tagged, separators=(",", ":")).encode()

    def _pickled(self, fields: dict[str, Any], kind: str) -> bytes:
        if not self._use_pickle:
            raise ValueError(f"JSON cannot hold {kind}, and BLOOMLOCK_PICKLE is False")
        try:
            data = pickle.dumps(fields, protocol=4)
        # A value of the project's may raise anything.
        except Exception as error:
            raise ValueError(str(error)) from error
        self._on_pickled(kind)
        return _PICKLE + data

    def decode(self, data: bytes) -> Request:
        """Return the request of an entry; ValueError, or anything that unpickling may raise."""
        if not data.startswith(_PICKLE):
            fields = _from_json(data)
        elif self._use_pickle:
            fields = pickle.loads(data[len(_PICKLE) :])  # noqa: S301 - as above
        else:
            raise ValueError("the entry is a pickle, and BLOOMLOCK_PICKLE is False")
        return request_from_dict(fields, spider=self._spider)


def from_pickle(data: bytes) -> bytes:
    # scrapy-redis keeps requests as pickled dicts.
    return _PICKLE + data


def to_pickle(data: bytes) -> bytes:
    """Return an entry as scrapy-redis keeps requests; nothing is unpickled."""
    if data.startswith(_PICKLE):
        return data[len(_PICKLE) :]
    return pickle.dumps({**_DEFAULTS, **_from_json(data)}, protocol=4)


def url_of(data: bytes) -> str:
    """Return the URL of an entry; of a pickle, that is not loaded, only what it is."""
    try:
        return str(json.loads(data)["url"])
    except (ValueError, KeyError, TypeError):
        return "(pickled)" if data.startswith(_PICKLE) else repr(data[:100])


def _from_json(data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(data, object_hook=_untagged)
    fields["headers"] = {
        name.encode("latin-1"): [value.encode("latin-1") for value in values]
        for name, values in fields.get("headers", {}).items()
    }
    return fields


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
        return {_SEQUENCES[kind]: [_tagged(one) for one in value]}
    if kind is not dict:
        raise TypeError(kind.__qualname__)
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _tagged(one) for key, one in value.items()}
    return {"$dict": [[_tagged(key), _tagged(one)] for key, one in value.items()]}


def _untagged(fields: dict[str, Any]) -> Any:
    if len(fields) == 1:
        ((key, value),) = fields.items()
        if key in _TAGS:
            return _TAGS[key](value)
    return fields


class RecentFingerprints(dict[bytes, int]):
    """How often the last fingerprints were met; the oldest are dropped first."""

    def add(self, fingerprint: bytes) -> int:
        """Note one that is met; return how often it was before."""
        before = self.pop(fingerprint, 0)
        self[fingerprint] = before + 1
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


@dataclass(eq=False, slots=True, weakref_slot=True)
class OpenPage:
    """A request from when it is taken until its callback, its items and its children are done."""

    request: Request | None
    """None if its entry could not be read."""
    host: str
    id: str = ""
    """On the server; empty if the request stays in this process."""
    parent: OpenPage | None = None
    """The page that made a request that stays in this process, or of which the downloader did."""
    fingerprint: bytes = b""
    """What is added to the filter when it is done, if it was not when it was queued."""
    error: str | None = None
    is_over: bool = False
    children: int = 0
    """How many requests that stay in this process wait or are open."""
    gave_item: bool = False
    records: Sequence[bytes] = ()
    """What the filter of delivered pages is given when it is done."""


class OpenPages(dict["Request", OpenPage]):
    """The pages that this process is at; `on_end` is called with each that is done or failed.

    A page ends when the engine is done with it, and so are all its children that stay in this
    process, so who is killed before makes them again. `maker_of` has the page whose callback made
    a request; what the downloader makes has none.
    """

    def __init__(self, on_end: Callable[[OpenPage], None]) -> None:
        super().__init__()
        self.maker_of: WeakKeyDictionary[Request, OpenPage] = WeakKeyDictionary()
        self._on_end = on_end
        self._by_tag: WeakValueDictionary[str, OpenPage] = WeakValueDictionary()

    def begin(self, request: Request, page: OpenPage) -> None:
        self[request] = page
        if not page.id:
            # The downloader copies `meta` into what it makes of a request, a retry or a redirect.
            request.meta[_TAG] = tag = secrets.token_hex(8)
            self._by_tag[tag] = page

    def note_child(self, request: Request) -> OpenPage | None:
        """Note a request that stays in this process; return the page that waits for it, if any."""
        maker = self.maker_of.get(request)
        made_of = self._by_tag.get(request.meta.get(_TAG, ""))
        if maker is None and made_of is not None and (made_of.children or not made_of.is_over):
            maker = self.maker_of[request] = made_of
        if maker is not None:
            maker.children += 1
        return maker

    def note_made(self, requests: Iterable[Request], by: Request, *, has_items: bool) -> None:
        if by in self:
            self.maker_of.update(dict.fromkeys(requests, self[by]))
            self[by].gave_item |= has_items

    def fail(self, request: Request, why: str) -> None:
        if request in self:
            self[request].error = why

    def collect(self, in_progress: Collection[Request]) -> None:
        """End the pages that the engine is done with."""
        for request in [one for one in self if one not in in_progress]:
            page = self.pop(request)
            page.is_over = True
            self.settle(page)

    def settle(self, page: OpenPage) -> None:
        """End a page if it is over, with its children."""
        if not page.is_over or page.children:
            return
        self._on_end(page)
        if (parent := page.parent) is not None:
            if page.error is not None:
                parent.error = f"{page.request}, which it made, failed: {page.error}"
            self.child_ended(parent)

    def child_ended(self, parent: OpenPage) -> None:
        """Note that a child that stays in this process is done, or no child after all."""
        parent.children -= 1
        self.settle(parent)


class PushMaker:
    """Makes the pushes of a crawler's requests.

    `known` are the fingerprints that this process knows to be in the filter, or to be here.
    """

    def __init__(self, crawler: Crawler, pages: OpenPages, *, use_pickle: bool) -> None:
        self.fingerprint = crawler.request_fingerprinter.fingerprint
        self.known = RecentFingerprints()
        self.codec = RequestCodec(crawler.spider, use_pickle=use_pickle, on_pickled=self._pickled)
        self._crawler = crawler
        self._pages = pages
        self._count: Any = crawler.stats.inc_value
        self._starts = RecentFingerprints()
        self._logged: set[str] = set()

    def is_known(self, request: Request) -> bool:
        """Return whether a request is a duplicate of which the server need not be asked."""
        return self.mode_of(request) == "n" and self.fingerprint(request) in self.known

    def mode_of(self, request: Request) -> Mode:
        """Return whether a request is filtered and recorded."""
        if request.dont_filter:
            return "a"
        if request.meta.get("bloomlock_filter") is False:
            return "r"
        is_redirect = "redirect_urls" in request.meta and request not in self._pages.maker_of
        return "r" if is_redirect and leads_back(request, self.fingerprint) else "n"

    def of(self, request: Request, *, is_again: bool = False) -> Push:
        """Return what queues a request; what has no form in the queue stays in this process."""
        mode, fingerprint = self.mode_of(request), self.fingerprint(request)
        if request.dont_filter and is_start_request(request):
            # Each process makes these, and one queues them. Of equal ones, which may differ in
            # what no fingerprint has, as cookies, the first of each process is one, and so on.
            number = 0 if is_again else self._starts.add(fingerprint)
            mode, fingerprint = "n", b"start:%d:%b" % (number, fingerprint)
        # `meta` may name a slot by what is no text.
        host = str(self._crawler.engine.downloader.get_slot_key(request))
        try:
            entry = self.codec.encode(request)
        except ValueError as error:
            self._stays_here(request, error)
            if mode == "n":
                self.known.add(fingerprint)
            return Push(request, fingerprint, "l" if mode == "n" and not is_again else "a", host)
        return Push(request, fingerprint, "r" if mode == "n" and is_again else mode, host, entry)

    def again(self, entry: bytes) -> Push:
        """Return what queues an entry of an earlier queue, whatever the filter has."""
        try:
            return self.of(self.codec.decode(entry), is_again=True)
        # It may be of other code.
        except Exception as error:  # noqa: BLE001
            return self.failed(entry, error)

    def failed(self, data: bytes, error: Exception) -> Push:
        """Return what keeps among the failed what cannot become a request."""
        self._count("bloomlock/failed")
        return Push(None, b"-", "f", f"{type(error).__name__}: {error}", data)

    def _stays_here(self, request: Request, error: Exception) -> None:
        self._count("scheduler/unserializable")
        page = self._pages.note_child(request)
        callback = getattr(request.callback, "__qualname__", repr(request.callback))
        if self._is_first(callback):
            logger.warning(
                "%s cannot be serialized (%s) and stays in this process; %s. It is logged once for "
                "the callback %s.",
                request,
                error,
                "the page that made it stays open until it is done"
                if page
                else "no page made it, so it is lost if this process is killed",
                callback,
            )

    def _pickled(self, kind: str) -> None:
        self._count("bloomlock/pickled")
        if self._is_first(f"pickled {kind}"):
            logger.info("Requests with a %s are pickled: JSON has no such type.", kind)

    def _is_first(self, what: str) -> bool:
        is_first = what not in self._logged
        self._logged.add(what)
        return is_first
