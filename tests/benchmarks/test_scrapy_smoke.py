"""The scrapy suite runs with tiny numbers; its rig counts what a killed crawl lost."""

from __future__ import annotations

import importlib
import socket
import threading
from html.parser import HTMLParser
from itertools import pairwise

import pytest
import redis

from bloomlock.server import PrivateServer

NAMES = ("in-memory", "dupefilter", "jobdir", "jobdir-dupefilter", "filter", "sadd")


@pytest.mark.processes
def test_scrapy(benchmark, monkeypatch):
    suite = importlib.import_module("benchmarks.suites.scrapy")
    monkeypatch.setattr(suite, "LINKS_MS", (0.0,))
    monkeypatch.setattr(suite, "KILLS", (16,))
    monkeypatch.setattr(suite, "FINGERPRINTS", 100_000)
    with PrivateServer(port=0) as server:
        out, result = benchmark("scrapy", NAMES, "--items", "4", "--url", server.url)
        with redis.Redis.from_url(server.url) as client:
            assert client.dbsize() == 0, "nothing may be left on a server that was given"
    in_memory, ours = result["rates"]
    assert in_memory["blocked"] == [0.0]
    assert ours["blocked"][0] > 0
    assert ours["round_trips"][0] >= suite.LINKS.new, "each new link of a page is asked for"
    jobdir, marked = result["crashes"]
    # Scrapy's own, which may lose its queue if the kill comes while that is written.
    wrong = jobdir["missing"][0] + jobdir["twice"][0]
    assert wrong > 0, "a rig that fetches nothing again did not kill"
    assert marked["missing"][0] > 0, "a rig that loses nothing here would not see a loss"
    assert result["memory"]
    for found in result["memory"]:
        few, many = found["rows"]
        assert many["bits"] > few["bits"]
    assert "killed with -9 at request 16" in out


def test_the_site_has_new_links_on_every_page_and_an_end():
    site = importlib.import_module("benchmarks.crawl_site")
    shape = site.Shape(links=20, new=4, pages=50)
    pages = [_links(site.page(number, shape)) for number in range(50)]
    known = {0}
    for number, links in enumerate(pages):
        new = {*range(number * 4 + 1, number * 4 + 5)} & {*range(50)}
        assert set(links) - known == new
        known |= new
    assert known == {*range(50)}
    assert len(pages[3]) == 20
    assert all(first != second for first, second in pairwise(pages))


def test_blocked_time_is_that_of_its_own_thread(monkeypatch):
    job = importlib.import_module("benchmarks.crawl_job")
    for name in job.SOCKET_CALLS:
        monkeypatch.setattr(socket.socket, name, getattr(socket.socket, name))
    monkeypatch.setattr(threading.Condition, "wait", threading.Condition.wait)
    blocked = job.BlockedTime()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        assert blocked.seconds == 0
        thread = threading.Thread(target=ours.recv, args=(1,))
        thread.start()  # waits for an Event
        before = blocked.seconds
        theirs.send(b"x")
        thread.join()
        assert blocked.seconds == before
        ours.sendall(b"x")
        after_socket = blocked.seconds
        assert after_socket > before
    threading.Event().wait(0.001)
    assert blocked.seconds > after_socket


class _Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        if tag == "a":
            self.found.append(int(dict(attrs)["href"][1:]))


def _links(page):
    parser = _Links()
    parser.feed(page.decode())
    return parser.found
