"""`filter export`, `import`, `copy`: all items go along, and a part of a filter is never seen."""

from __future__ import annotations

import contextlib
import signal

import pytest
from cli_process import PATIENCE
from private import PrivateServer
from servers import wait_until

from bloomlock import BloomFilter, MemoryBloomFilter
from bloomlock.catalog import list_filters

LINES = [f"{number}".encode() for number in range(1000)]


@pytest.fixture
def bloom(r, valkey, name):
    with BloomFilter(name, 20_000, client=valkey, shards=3) as made:
        made.update(LINES)
        yield made


def holds(name, url):
    with BloomFilter.open(name, client=url) as made:
        return all(made.exists_many(LINES))


@pytest.mark.usefixtures("bloom")
def test_a_file_goes_out_and_comes_in(run, refuse, name, tmp_path, valkey):
    file = tmp_path / "urls.bloom"
    assert run("filter", "export", name, str(file)) == (0, b"", b"")
    refuse(2, "give --force to replace it", "filter", "export", name, str(file))
    assert run("filter", "export", "--force", name, str(file)).returncode == 0
    assert all(MemoryBloomFilter.load(file).exists_many(LINES))
    refuse(2, f"name '{name}' is taken by another filter", "filter", "import", name, str(file))
    assert run("filter", "clear", "--yes", name).returncode == 0
    assert run("filter", "import", "--replace", name, str(file)).returncode == 0
    assert run("filter", "import", f"{name} 2", str(file)).returncode == 0
    assert holds(name, valkey)
    assert holds(f"{name} 2", valkey)


def test_through_pipes_and_copies(run, refuse, name, valkey, bloom):
    bloom.add("discarded")
    assert bloom.discard("discarded")
    written = run("filter", "export", name, "-")
    assert written.returncode == 0
    assert run("filter", "import", f"{name} 2", "-", given=written.stdout)[:2] == (0, b"")
    assert run("filter", "copy", name, f"{name} 3").returncode == 0
    for number in (2, 3):
        with BloomFilter.open(f"{name} {number}", client=valkey) as made:
            assert made.exists_many(["discarded", *LINES]) == [False] + [True] * 1000
    words = ("filter", "import", f"{name} 4", "-")
    refuse(2, " was cut short", *words, given=written.stdout[:-1])
    assert f"{name} 4" not in list_filters(client=valkey)


@pytest.mark.usefixtures("bloom")
def test_copy_to_another_server(run, refuse, name):
    with PrivateServer() as other:
        words = ("filter", "copy", name, "--to", other.url)
        assert run(*words)[:2] == (0, b"")
        assert holds(name, other.url)
        refuse(2, "is taken by another filter", *words)
        assert run("filter", "copy", "--replace", *words[2:]).returncode == 0
    refuse(2, "no Redis server answers", *words)


def test_what_is_no_file_of_a_filter_is_one_sentence(refuse, name, tmp_path, valkey):
    (tmp_path / "text").write_text("<html>")
    for place in (tmp_path, tmp_path / "text", tmp_path / "none"):
        refuse(2, str(place), "filter", "import", name, str(place))
    refuse(2, "", "filter", "import", name, "-")
    assert name not in list_filters(client=valkey)
    BloomFilter(name, 1000, client=valkey).close()
    refuse(2, "No such file", "filter", "export", name, str(tmp_path / "no" / "such"))


def test_an_import_that_is_interrupted_leaves_nothing(start, run, r, name, bloom):
    data = run("filter", "export", name, "-").stdout
    keys = set(r.keys())
    process = start("filter", "import", f"{name} 2", "-")
    process.stdin.write(data[: len(data) // 2])
    process.stdin.flush()
    wait_until(lambda: set(r.keys()) != keys)
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(data[len(data) // 2 :])
        process.stdin.close()
    assert process.wait(PATIENCE) == -signal.SIGTERM
    assert set(r.keys()) == keys
    assert all(bloom.exists_many(LINES))
