"""Parts of the benchmarks that decide what comes out."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import redis

from benchmarks.contenders import EXACT, GUARDED, make
from benchmarks.delay_proxy import delayed
from benchmarks.engine import Row
from benchmarks.place import Meter, Place, connect
from benchmarks.tables import overview
from benchmarks.workloads import POPULAR, items, link_stream, new_in
from bloomlock.server import PrivateServer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server():
    with PrivateServer() as private:
        yield private.url


def test_the_proxy_carries_everything(server):
    large = b"x" * 3_000_000
    with delayed(server, 1.0) as url, connect(url) as client:
        assert url != server
        assert client.set("large", large)
        assert client.get("large") == large
        pipeline = client.pipeline(transaction=False)
        for number in range(5000):
            pipeline.echo(number)
        assert pipeline.execute() == [str(number).encode() for number in range(5000)]


def test_the_proxy_ends_with_who_started_it(server, tmp_path):
    command = [sys.executable, "-m", "benchmarks.delay_proxy", server, str(tmp_path / "s"), "0"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as proxy:
        try:
            assert proxy.stdout.readline() == b"ready\n"
            proxy.stdin.close()
            assert proxy.wait(timeout=30) == 0
        finally:
            proxy.kill()


def test_a_meter_counts_what_others_send(server):
    with redis.Redis.from_url(server) as other, redis.Redis.from_url(server) as own:
        other.ping()
        meter = Meter(own)
        meter.start()
        for _ in range(1000):
            other.ping()
        spent = meter.stop()
    # *1 $4 PING and +PONG; INFO itself varies by a few digits.
    assert spent.received == pytest.approx(14_000, abs=100)
    assert spent.sent == pytest.approx(7_000, abs=200)


def test_links_in_the_order_of_a_crawl(tmp_path):
    pages = {
        "index.html": '<a href="b.html">b</a> <a href="a.html#x">a</a> <a href="#top">here</a>',
        "a.html": '<a href="https://example.org/">away</a> <a href="b.html">b</a>',
        "b.html": '<a href="missing.html">missing</a>',
    }
    for name, text in pages.items():
        (tmp_path / name).write_text(text)
    b, a, index, missing, again = link_stream(tmp_path)
    assert len({b, a, index, missing}) == 4
    assert again == b
    with pytest.raises(ValueError, match=r"index\.html"):
        link_stream(tmp_path / "nowhere")


def test_new_items_of_a_stream():
    known = set(items(*POPULAR))
    stream = items("zipf:tag", 5000)
    new = [item for item in stream if item not in known]
    assert len(new) == len(set(new)) == new_in("zipf:tag", 5000)
    assert 400 < len(new) < 600


def test_the_overview_compares_each_case_with_its_base():
    def row(contender, rates, batch):
        measured = {"rates": rates, "server": [2.0] * 3, "client": [3.0] * 3}
        return asdict(
            Row(contender, contender, "add_many", "new", batch, 0, 10, 0.1, 1, 0.0, **measured)
        )

    rows = [
        row("ours", [2.0, 6.0, 9.0], 1000),
        row("sadd", [1.0, 2.0, 9.0], 1000),
        row("ours", [1.0, 1.0, 1.0], 10),
        row("ping", [4.0, 4.0, 4.0], 10),
    ]
    rates, busy = overview({"rows": rows, "missing": []})
    heads = [column.header for column in rates.columns]
    assert rates.title == "add_many: new items, filter for 10 at 0.1: rate"
    assert heads == ["", "10 in a call", "1,000 in a call"]
    assert [list(column.cells) for column in rates.columns] == [
        ["ours", "ping", "sadd"],
        ["0.25", "1.00", ""],
        ["2.00", "", "1.00"],
    ]
    assert [list(column.cells) for column in busy.columns][2] == ["2.00 + 3.00", "", "2.00 + 3.00"]


@pytest.mark.parametrize("entry", [EXACT, GUARDED], ids=lambda entry: entry.name)
def test_exact_peers_name_each_new_item_once(server, entry):
    place = Place(server, "parts:", entry.name, 1000, 0.01)
    one, other = (make(entry.made_by, place, entry.options) for _ in range(2))
    assert one.add_many(["a", "b", "a"]) == [True, True, False]
    assert other.add_many(["b", "c", "c", "d"]) == [False, True, False, True]
    assert one.add_many(["a", "d", "e"]) == [False, False, True]
    one.clear()
    assert one.add("a")
    assert not one.add("a")
