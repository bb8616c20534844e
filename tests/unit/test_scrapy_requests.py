"""Requests as they stand in the queue."""

from __future__ import annotations

import pickle
from datetime import date
from typing import Any

import pytest
from scrapy import FormRequest, Request, Spider
from scrapy.http import JsonRequest

from scrapy_ext.requests import PICKLE, RequestCodec, url_of


class PageSpider(Spider):
    name = "pages"

    def parse_page(self, response: Any) -> None: ...

    def failed(self, failure: Any) -> None: ...


SPIDER = PageSpider()
URL = "http://site/1?b=%C3%A4"
CASES = [
    Request(URL),
    Request(URL, SPIDER.parse_page, errback=SPIDER.failed, priority=-5, dont_filter=True),
    Request(URL, method="POST", body=b"\x00\xff\xfe", headers={"Referer": "http://site/\xe4"}),
    Request(URL, headers={b"X": [b"\xff", b"2"]}, cookies=[{"name": "a", "value": "1"}]),
    Request(URL, meta={"a": [1, 2.5, None, True, "\ud800"], "b": (1, (2,)), 3: b"\xff"}),
    Request(
        URL,
        meta={"$bytes": "x", "d": {"$tuple": [1]}, "e": frozenset({1}), "g": {2}, "f": {(1, 2): 3}},
    ),
    Request(URL, cb_kwargs={"page": 1}, flags=["one"], encoding="latin-1"),
    FormRequest(URL, formdata={"a": "1"}),
    JsonRequest(URL, data={"a": 1}),
    JsonRequest(URL, method="GET"),
]


def same(one: Request, other: Request) -> bool:
    return type(one) is type(other) and one.to_dict(spider=SPIDER) == other.to_dict(spider=SPIDER)


@pytest.mark.parametrize("request_", CASES, ids=range(len(CASES)))
def test_a_request_comes_back_as_it_was_from_json(request_: Request) -> None:
    codec = RequestCodec(SPIDER, use_pickle=False)
    data = codec.encode(request_)
    assert data.startswith(b"{")
    assert same(codec.decode(data), request_)
    assert url_of(data) == request_.url


def test_what_is_queued_is_a_copy_and_short() -> None:
    request = Request("http://site/1", meta={"depth": 1, "seen": []})
    data = RequestCodec(SPIDER).encode(request)
    request.meta["seen"].append(1)
    assert RequestCodec(SPIDER).decode(data).meta == {"depth": 1, "seen": []}
    assert len(data) < 80


def test_what_json_cannot_hold_is_pickled_unless_that_is_refused() -> None:
    class Text(str):
        __slots__ = ()

    pickled: list[str] = []
    codec = RequestCodec(SPIDER, on_pickled=pickled.append)
    request = Request(URL, meta={"day": date(2026, 1, 1)}, headers={"A": "1"})
    data = codec.encode(request)
    assert (pickled, url_of(data)) == (["date"], "(pickled)")
    assert same(codec.decode(data), request)
    strict = RequestCodec(SPIDER, use_pickle=False)
    with pytest.raises(match="JSON cannot hold date, and BLOOMLOCK_PICKLE"):
        strict.encode(request)
    with pytest.raises(ValueError, match="is a pickle"):
        strict.decode(data)
    with pytest.raises(match="Text"):
        strict.encode(Request(URL, meta={"a": Text("a")}))
    circle: list[Any] = []
    circle.append(circle)
    assert codec.decode(codec.encode(Request(URL, meta={"a": circle}))).meta["a"][0]


@pytest.mark.parametrize("callback", [lambda _: None, print])
def test_a_callback_that_is_no_method_of_the_spider_has_no_form(callback: Any) -> None:
    for request in (Request(URL, callback), Request(URL, meta={"a": lambda: None})):
        with pytest.raises(ValueError, match="is not an instance method|pickle"):
            RequestCodec(SPIDER).encode(request)


class NumberedRequest(Request):
    def __init__(self, number: int, **options: Any) -> None:
        super().__init__(f"{URL}&page={number}", **options)


def test_what_another_process_could_not_make_again_has_no_form() -> None:
    class HiddenRequest(Request):
        pass

    class WaitingSpider(PageSpider):
        @property
        def rows(self) -> Any:
            raise RuntimeError("there is no database yet")

    waiting = WaitingSpider()
    for spider, request, why in (
        (SPIDER, HiddenRequest(URL), "HiddenRequest"),
        (SPIDER, NumberedRequest(3), "number"),
        (waiting, Request(URL, waiting.parse_page), "no database"),
    ):
        with pytest.raises(match=why):
            RequestCodec(spider).encode(request)


def test_a_callback_that_is_gone_and_an_entry_of_scrapy_redis() -> None:
    codec = RequestCodec(SPIDER)
    with pytest.raises(ValueError, match="parse_more"):
        codec.decode(b'{"url":"http://site/1","callback":"parse_more"}')
    for wrong in (b"", b"{", b"[]", b"\x80"):
        with pytest.raises((ValueError, AttributeError)):
            codec.decode(wrong)
    theirs = pickle.dumps(CASES[1].to_dict(spider=SPIDER), protocol=-1)
    assert same(codec.decode(PICKLE + theirs), CASES[1])
