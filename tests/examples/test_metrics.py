"""Metrics by OpenTelemetry: what Prometheus reads of the example, and what is counted."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from urllib.request import urlopen

import pytest
import servers
from private import low_port

from bloomlock import AsyncBloomFilter, BloomFilter, Lock
from bloomlock.errors import FilterLostError, LockLostError

BOARD = Path(__file__).parents[2] / "examples" / "metrics_board.json"


@pytest.fixture
def opentelemetry():
    servers.require_package("opentelemetry")


@pytest.fixture
def metrics(opentelemetry, reader):
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - it may not be there

    from bloomlock.metrics import Metrics  # noqa: PLC0415 - as above

    return Metrics(MeterProvider([reader]), every=0)


@pytest.fixture
def reader(opentelemetry):
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415 - as above

    return InMemoryMetricReader()


def collected(reader, name):
    data = reader.get_metrics_data()
    return {
        tuple(point.attributes.values()): point.value
        for resource in (data.resource_metrics if data else ())
        for metric in resource.scope_metrics[0].metrics
        if metric.name == f"bloomlock.{name}"
        for point in metric.data.data_points
    }


@pytest.mark.processes
def test_prometheus_reads_the_example(start, opentelemetry):
    port = low_port()
    program = start("opentelemetry", "metrics_server.py", port)
    program.wait_for(lambda: "new" in program.printed)
    # The lock may not have been released yet.
    page = program.wait_for(
        lambda: (text := read(f"http://127.0.0.1:{port}/metrics")) and "released" in text and text
    )
    values = dict(re.findall(r"^(bloomlock_\w+)\{.*\} (\S+)$", page, re.MULTILINE))
    assert float(values["bloomlock_filter_capacity"]) == 1_000_000
    assert float(values["bloomlock_filter_estimated_count"]) == pytest.approx(101, abs=3)
    assert float(values["bloomlock_filter_claims_committed_total"]) == 1
    assert re.search(r'_lock_events_total\{event="acquired",lock="nightly".*\} 1.0', page)
    assert re.search(r'_adds_total\{answer="new",filter="jobs".*\} 100.0', page)
    panels = json.loads(BOARD.read_text())["panels"]
    shown = {name for panel in panels for name in re.findall(r"bloomlock_\w+", str(panel))}
    # Errors have no name before there is one.
    assert shown - set(values) == {"bloomlock_filter_errors_total"}


def read(url):
    with urlopen(url, timeout=60) as reply:  # noqa: S310 - loopback
        return reply.read().decode()


def test_what_an_object_adds_and_its_errors_are_counted(metrics, reader, valkey, r):
    with BloomFilter("pages", 1000, client=valkey) as pages:
        metrics.count(pages)
        assert pages.add("a")
        assert not pages.add("a")
        assert pages.add_many(["a", "b", "b", "c"]) == [False, True, False, True]
        assert "c" in pages
        with BloomFilter("pages", 1000, client=valkey) as other:
            other.clear()
        for _ in range(2):
            with pytest.raises(FilterLostError):
                pages.exists("a")
    assert collected(reader, "filter.adds") == {("pages", "new"): 3, ("pages", "seen"): 3}
    assert collected(reader, "filter.errors") == {("pages", "FilterLostError"): 2}


def test_in_asyncio_too(metrics, reader, valkey, r):
    async def add():
        async with AsyncBloomFilter("pages", 1000, client=valkey) as pages:
            metrics.count(pages)
            adds = [pages.add(str(number % 50)) for number in range(100)]
            assert sum(await asyncio.gather(*adds)) == 50
            await pages.add_many(["a", "b", "a"])
            await pages.delete()
            with pytest.raises(FilterLostError):
                await pages.add("a")

    asyncio.run(add())
    assert collected(reader, "filter.adds") == {("pages", "new"): 52, ("pages", "seen"): 51}
    assert collected(reader, "filter.errors") == {("pages", "FilterLostError"): 1}


def test_a_filter_that_cannot_be_read_has_no_fill(metrics, reader, valkey, r):
    with pytest.raises(TypeError, match="argument 'url'"):
        metrics.poll("pages", url=valkey)
    metrics.poll("pages", client=valkey)
    assert collected(reader, "filter.estimated_count") == {}
    assert set(collected(reader, "filter.errors")) == {("pages", "FilterNotFoundError")}
    with BloomFilter("pages", 1000, client=valkey) as pages:
        pages.update(map(str, range(500)))
        claims = pages.claim_many(["a", "b", "c"])
        pages.commit_many(claims[:1])
        claims[1].abandon("error")
        (items,) = collected(reader, "filter.estimated_count").values()
        assert items == pytest.approx(501, abs=30)
        assert collected(reader, "filter.claims.open") == {("pages",): 1}
        assert collected(reader, "filter.claims.failed") == {("pages",): 1}
        pages.clear()
        # A clear is no error for who only looks on.
        assert collected(reader, "filter.estimated_count") == {("pages",): 0}


def test_locks_that_are_waited_for_and_lost(metrics, reader, valkey, r):
    with pytest.raises(LockLostError), Lock("a", r, observer=metrics.observe_lock) as lock:
        assert not Lock("a", r, observer=metrics.observe_lock).acquire(timeout=0.01)
        r.delete(lock.key)
    with Lock("b", r, observer=metrics.observe_lock):
        pass
    kinds = [
        ("a", "acquired"),
        ("a", "timeout"),
        ("a", "lost"),
        ("b", "acquired"),
        ("b", "released"),
    ]
    assert collected(reader, "lock.events") == dict.fromkeys(kinds, 1)
    assert collected(reader, "lock.seconds")["a", "timeout"] >= 0.01
