"""`bloomlock scrapy-import`: all that a crawl has seen is in the filter, and a crawl finds it."""

from __future__ import annotations

import hashlib
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import redis
from asked_filter import crawler_of
from proxy import Proxy
from scrapy import Request, Spider
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.test import get_crawler
from scrapy_redis.dupefilter import RFPDupeFilter as SetDupeFilter

from bloomlock import BloomFilter
from bloomlock.cli.crawls import seen_file
from scrapy_ext import EarlierFingerprinter
from scrapy_ext.crawl_state import CrawlRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = "REQUEST_FINGERPRINTER_CLASS"
SCRAPY = "scrapy.utils.request.RequestFingerprinter"


def pages(count: int, first: int = 0) -> list[Request]:
    urls = [f"https://shop.example/?b={number}&a=1" for number in range(first, first + count)]
    return [*map(Request, urls), Request(urls[0], method="POST", body=b"\xff")]


def settings_of(done) -> dict[str, object]:
    """What a settings.py with the written lines sets."""
    names: dict[str, object] = {}
    exec(done.stdout, names)  # noqa: S102 - it is ours
    return {name: value for name, value in names.items() if name.isupper()}


@contextmanager
def filter_of(valkey: str, name: str) -> Iterator[BloomFilter]:
    """The filter of the crawl that the next process goes on with."""
    with redis.Redis.from_url(valkey) as client:
        prefix = CrawlRecord(client, name).prepare()
        with BloomFilter.open(name, client=client, prefix=prefix) as bloom:
            yield bloom


def crawl_sees(valkey: str, settings: dict[str, object], requests: list[Request]) -> list[bool]:
    """What the filter of a crawl with these settings says of requests."""
    fingerprinter = crawler_of(**settings).request_fingerprinter
    with filter_of(valkey, str(settings["BLOOMLOCK_NAME"])) as bloom:
        return bloom.exists_many([*map(fingerprinter.fingerprint, requests)])


@pytest.fixture
def filled(valkey, name, r):
    """A set that the duplicates filter of scrapy-redis has filled, and its requests."""
    key, requests = f"{name}:dupefilter", pages(300)
    dupefilter = SetDupeFilter(r, key)
    assert not any(map(dupefilter.request_seen, requests))
    return key, requests


def test_a_crawl_goes_on_with_the_set_of_scrapy_redis(run, valkey, r, filled):
    key, requests = filled
    done = run("scrapy-import", key)
    assert (done.returncode, done.stderr.count(b"\n")) == (0, 2)
    assert done.stderr.startswith(b"bloomlock: 301 fingerprints read from the set '")
    settings = settings_of(done)
    assert settings["BLOOMLOCK_NAME"] == key.removesuffix(":dupefilter")
    new = pages(100, first=5000)
    assert crawl_sees(valkey, settings, requests + new) == [True] * 301 + [False] * 101
    assert r.scard(key) == 301
    # Without the written fingerprinter Scrapy takes its own, which are not those of scrapy-redis.
    assert not any(crawl_sees(valkey, {**settings, OURS: SCRAPY}, requests))


def test_the_fingerprint_of_scrapy_before_2_7():
    request = Request("https://shop.example/?b=1&a=1", method="POST", body=b"c")
    known = hashlib.sha1(b"POSThttps://shop.example/?a=1&b=1c")  # noqa: S324
    assert EarlierFingerprinter().fingerprint(request) == known.digest()


def test_a_crawl_goes_on_with_the_file_of_scrapy(run, valkey, name, tmp_path):
    requests = pages(500)
    crawler = get_crawler(Spider, {"JOBDIR": str(tmp_path)})
    dupefilter = RFPDupeFilter.from_crawler(crawler)
    assert not any(map(dupefilter.request_seen, requests))
    dupefilter.close("")
    for source in (tmp_path, tmp_path / "requests.seen"):
        done = run("scrapy-import", str(source), name)
        assert done.returncode == 0
        assert b"501 fingerprints read" in done.stderr
    settings = settings_of(done)
    assert (settings["BLOOMLOCK_CAPACITY"], OURS in settings) == (1_000_000, False)
    assert all(crawl_sees(valkey, settings, requests))


def of_kind(kind: str, prints: list[bytes]) -> bytes:
    if kind == "text":
        return b"".join(b"%s\n" % each.hex().encode() for each in prints)
    return b"".join(len(each).to_bytes(2, "big") + each for each in prints)


@pytest.mark.parametrize("kinds", [["text"], ["binary"], ["text", "binary"]])
def test_a_file_of_processes_that_were_killed(kinds, seed, tmp_path):
    rng, path = random.Random(seed), tmp_path / "requests.seen"
    for _ in range(20):
        data, whole, cuts = b"", [], 0
        for _ in range(rng.randrange(1, 6)):
            prints = [rng.randbytes(20) for _ in range(400)]
            kind = rng.choice(kinds)
            size = 41 if kind == "text" else 22
            # Buffers are written whole, so a killed process leaves a part of a record.
            left = rng.randrange(20 * size, 400 * size)
            data += of_kind(kind, prints)[:left]
            whole += prints[: left // size]
            cuts += left % size > 0
        path.write_bytes(data)
        found = list(seen_file(path)[2])
        # What was cut off runs into the next one.
        assert len(set(whole) - set(found)) <= cuts
        assert len(found) <= len(whole) + cuts


def test_all_that_is_there_from_the_beginning_is_read_while_the_set_grows(run, valkey, r, filled):
    key, requests = filled
    late: list[bytes] = []

    def judge(command: str, _: int) -> str:
        # The set and its table get larger before the reading ends: a call visits 2,000 places of
        # 4,096 or more.
        if command == "SSCAN" and len(late) < 12_000:
            late.extend(b"%08x%032x" % (len(late), number) for number in range(4000))
            r.sadd(key, *late[-4000:])
        return "pass"

    with Proxy(valkey, judge) as proxy:
        done = run("scrapy-import", key, "--from", proxy.url)
    assert done.returncode == 0
    assert b"run the same command again when it has stopped" in done.stderr
    assert all(crawl_sees(valkey, settings_of(done), requests))
    assert run("scrapy-import", key).returncode == 0
    with filter_of(valkey, key.removesuffix(":dupefilter")) as bloom:
        assert all(bloom.exists_many([bytes.fromhex(one.decode()) for one in late]))


def test_a_server_that_is_gone(run, valkey, filled):
    key, requests = filled

    def judge(command: str, _: int) -> str:
        return "before" if command in ("BITFIELD", "EVALSHA") else "pass"

    assert run("scrapy-import", key).returncode == 0
    with Proxy(valkey, judge) as proxy:
        done = run("scrapy-import", key, "--url", proxy.url, "--from", valkey)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    again = run("scrapy-import", key)
    assert all(crawl_sees(valkey, settings_of(again), requests))


def test_what_is_no_set_and_no_file_of_fingerprints(refuse, name, r, tmp_path):
    file = tmp_path / "page.html"
    file.write_text("<html>")
    r.set("a-string", "x")
    r.sadd("a-set", "page")
    for source, part in (
        ("no-such-key", "there is no file 'no-such-key', and no set of scrapy-redis at "),
        ("a-string", "no set of scrapy-redis at "),
        ("a-set", "has the member b'page', which is no hexadecimal fingerprint"),
        (str(file), "is no requests.seen of Scrapy"),
    ):
        refuse(2, part, "scrapy-import", source, name)
