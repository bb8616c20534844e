"""Each suite runs with tiny numbers, and measures what it says."""

from __future__ import annotations

import doctest
import json
from dataclasses import replace
from importlib import import_module

import pytest
from click.testing import CliRunner
from private import PrivateServer

from benchmarks import page, proxies, results
from benchmarks.__main__ import main
from benchmarks.place import Meter, connect
from benchmarks.suites import SUITES

pytestmark = pytest.mark.processes
ONE, NEW, HALF = "one item in a call", "add: new items", "exists: half of the items seen"


@pytest.fixture(scope="module")
def server():
    with PrivateServer(port=0) as private:
        yield private


@pytest.fixture
def measure(tmp_path):
    """Run a suite; return its figures by part, contender and column, and what was printed."""

    def measure(suite, *more, part="", only=""):
        where = ("--results", str(tmp_path))
        chosen = [word for name in only.split() for word in ("--contender", name)]
        parts = ("--part", part) if part else ()
        words = ["run", suite, "--quick", "--repetitions", "1", *where, *parts, *chosen, *more]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, (done.output, done.exception)
        result = json.loads((tmp_path / f"{suite}.json").read_text())
        found = {
            (row["part"], row["name"], row["table"], row["column"]): row["figures"]
            for row in result["rows"]
        }
        assert not any(sum(figures.get("wrong", ())) for figures in found.values())
        return {"out": done.stdout, **found}

    return measure


def test_single_items(measure):
    found = measure("single", "--items", "50", part="single", only="atomic sadd")
    for name in ("atomic", "sadd"):
        assert found["single", name, ONE, NEW]["trips"][0] < 1.5
    # Some bytes of command and key, and the item's 40: more than an item, less than five.
    assert 50 < found["single", "sadd", ONE, NEW]["to"][0] < 200
    assert "/ SADD" in found["out"]


def test_the_server_at_50_connections(measure):
    found = measure("single", "--items", "100", part="busy", only="atomic sadd")
    table = "an add of a seen item at 50 connections"
    atomic, sadd = (found["busy", name, table, ""] for name in ("atomic", "sadd"))
    assert atomic["to"][0] > sadd["to"][0] > 50
    assert atomic["trips"][0] < 1.5 > sadd["trips"][0]


def test_far_away(measure):
    found = measure("single", "--items", "20", part="far", only="near-cache sadd")
    assert ("far", "near-cache", ONE, f"{NEW}, round trip 0.5 ms") in found


def test_batches(measure):
    found = measure("batch", "--items", "30", only="atomic exact bitmap sadd-count")
    assert found["batch", "exact", NEW.replace("add", "add_many"), "30 in a call"]
    assert "update: new items, 30 in a call" in found["out"]


def test_tasks(measure):
    found = measure("tasks", "--items", "200", only="async-atomic async-sadd-one")
    table, column = "add, by tasks of asyncio", "1,000 tasks"
    assert found["tasks", "async-atomic", table, column]["trips"][0] < 0.5
    assert found["tasks", "async-sadd-one", table, column]["trips"][0] > 0.9


def test_memory(measure):
    found = measure("memory", "--items", "2000", only="atomic sadd")
    at = "bits for each item at 1e-06", "2,000 items"
    assert found["bits", "atomic", *at]["over"][0] > 1
    assert found["bits", "sadd", *at]["bits"][0] > 300
    errors = [f["errors"][0] for key, f in found.items() if key[0] == "fills"]
    assert errors == sorted(errors)
    assert errors[-1] > 0.001


def test_windows(measure):
    found = measure("windows", "--items", "20", part="windows", only="plain window")
    plain, window = (found["windows", name, ONE, NEW] for name in ("plain", "window"))
    # A look at the fill may come between.
    assert plain["trips"][0] < 1.5 > window["trips"][0]


def test_losses(measure):
    found = measure("losses", "--items", "200", only="atomic-new atomic-raise sadd sadd-once")
    new, raising, retried, once = (f for key, f in found.items() if key != "out")
    for one in (new, raising, retried, once):
        assert one["before"][0] + one["after"][0] > 4
        assert one["before"][0] - one["after"][0] in {0, 1}
    assert (new["lost"], new["raised"], raising["lost"]) == ([0], [0], [0])
    assert raising["raised"][0] > 0
    # A client that retries by itself is told "already there" by its own first try.
    assert retried["lost"] == retried["after"]


def test_claims(measure, monkeypatch):
    monkeypatch.setattr(proxies, "TRIES", 0)
    found = measure("claims", "--items", "20", only="claims lock-sadd ping-bytes")
    for name, trips in {"claims": (2, 1), "lock-sadd": (5, 1)}.items():
        columns = (NEW, "exists: seen items")
        # A look at the fill may come between.
        assert tuple(round(found["calls", name, ONE, c]["trips"][0]) for c in columns) == trips


def test_locks(measure, monkeypatch):
    suite = import_module("benchmarks.suites.locks")
    monkeypatch.setattr(suite, "CELLS", ((1, 0.0), (3, 1.0)))
    found = measure("locks", "--items", "2", only="Lock redis-py python-redis-lock ping-bytes")
    for key, figures in found.items():
        assert key == "out" or (figures["twice"], figures["errors"]) == ([0], [0])
    # SET NX and a script of GET and DEL for each grant, and those of a first one before the slice.
    assert found["locks", "redis-py", "1 client, held 0 ms", ""]["trips"] == [2.0]
    assert "3 clients, held 1 ms" in found["out"]


def test_dedup(measure):
    found = measure("dedup", "--items", "1000", only="dedup sort")
    assert all(f["written"] == [500] for key, f in found.items() if key != "out")


def test_crawls(measure, monkeypatch):
    suite = import_module("benchmarks.suites.scrapy")
    monkeypatch.setattr(suite, "LINKS_MS", (0.0,))
    monkeypatch.setattr(suite, "KILLS", (8,))
    monkeypatch.setattr(suite, "CRASH", replace(suite.CRASH, pages=25))
    found = measure("scrapy", "--items", "4", only="in-memory dupefilter")
    table = "crawls, 185 links a page"
    assert found["rates", "dupefilter", table, "unix socket"]["trips"][0] >= 1, (
        "the new links of a page are asked for"
    )
    assert 0 < found["rates", "dupefilter", table, "unix socket"]["blocked"][0] < 1
    assert "reactor blocked" in found["out"]
    delays = found["delays", "in-memory", "8 hosts, a delay of 0.1 s", "1 process"]
    assert delays["gap"][0] > 20, "without the delay it is some milliseconds"
    crash = found["crashes", "in-memory", "25 pages, killed and started again", ""]
    assert crash["pages"] == [25]
    assert crash["twice"][0] > 0, "a rig that fetches nothing again did not kill"


def test_pictures(tmp_path):
    plots = import_module("benchmarks.plots")
    drawn = [*plots.draw(results.load(), tmp_path)]
    assert {file.name for file in drawn} == {
        f"{name}-{theme}.svg" for name, _ in page.PICTURES.values() for theme in plots.THEMES
    }
    assert "bloomlock atomic" in drawn[0].read_text("utf-8")


@pytest.mark.parametrize("place", page.PAGES, ids=lambda place: place.name)
def test_pages_have_the_figures_of_the_results(place):
    assert page.filled(place, results.load()) == place.read_text("utf-8")


def test_a_longer_way_carries_everything_later(server, monkeypatch):
    monkeypatch.setattr(proxies, "PINGS", 5)
    with proxies.delayed(server.url, 20.0) as url, connect(url) as client:
        assert proxies.measured_ms(url) > 5
        large = b"x" * 3_000_000
        assert client.set("large", large)
        assert client.get("large") == large
        assert client.delete("large")


def test_a_meter_counts_what_others_send(server):
    with connect(server.url) as other, connect(server.url) as own:
        other.ping()
        meter = Meter(own)
        meter.start()
        for _ in range(1000):
            other.ping()
        spent = meter.stop(1000)
    # *1 $4 PING and +PONG; INFO itself varies by a few digits.
    assert spent["to"] == pytest.approx(14, abs=0.1)
    assert spent["from"] == pytest.approx(7, abs=0.2)


def test_every_suite_has_results():
    assert results.load().keys() == SUITES.keys()


@pytest.mark.parametrize("name", ["plots", "suites.locks", "tables", "jobs"])
def test_examples(name):
    found = doctest.testmod(import_module(f"benchmarks.{name}"))
    assert (found.failed, found.attempted > 0) == (0, True)
