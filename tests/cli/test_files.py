"""`bloomlock filter export`, `import` and `copy`."""

from __future__ import annotations

import contextlib
import os
import re
import signal

import pytest
import redis
from cli_process import PATIENCE
from servers import wait_until

from bloomlock import BloomFilter, MemoryBloomFilter, list_filters
from bloomlock.cli.files import Journal
from bloomlock.server import PrivateServer

LINES = [f"{number}".encode() for number in range(1000)]


@pytest.fixture
def bloom(valkey, name):
    with BloomFilter(name, 20_000, client=valkey, shards=3) as made:
        made.update(LINES)
        yield made


@pytest.mark.usefixtures("bloom")
def test_a_file_goes_out_and_comes_in(run, name, tmp_path, valkey, marked):
    file = tmp_path / "urls.bloom"
    done = run("filter", "export", name, str(file))
    assert (done.returncode, done.stdout) == (0, b"")
    assert re.fullmatch(
        rb"bloomlock: wrote \S+: about \d+ items of 20000, [\d.]+ KiB\n", done.stderr
    )
    assert run("filter", "export", name, str(file)).stderr.endswith(b"give --force to replace it\n")
    assert run("filter", "export", "--force", name, str(file)).returncode == 0
    assert MemoryBloomFilter.load(file, verify=True).exists_many(LINES) == [True] * 1000
    taken = run("filter", "import", name, str(file))
    assert (taken.returncode, taken.stdout) == (2, b"")
    assert taken.stderr == f"bloomlock: name '{name}' is taken by another filter\n".encode()
    assert run("clear", "--yes", name).returncode == 0
    assert run("filter", "import", "--replace", name, str(file)).returncode == 0
    assert marked(LINES) == set(LINES)
    assert run("filter", "import", f"{name} 2", str(file)).returncode == 0
    assert f"{name} 2" in list_filters(client=valkey)


@pytest.mark.parametrize("kind", [{"window": 3600}, {"on_full": "grow"}, {"key": None}], ids=str)
def test_filters_with_a_window_that_grow_or_forgot(run, name, tmp_path, valkey, kind):
    file = str(tmp_path / "urls.bloom")
    with BloomFilter(name, 2000, client=valkey, shards=3, **kind) as made:
        if "key" in kind:
            made.add("forgotten")
            assert made.discard("forgotten")
        made.update(LINES)
    assert run("filter", "export", name, file).returncode == 0
    looked = run("filter", "import", "--dry-run", f"{name} 2", file)
    assert (looked.returncode, looked.stdout) == (0, b"")
    assert re.fullmatch(
        rb"bloomlock: would import [^\n]+: a filter of 2000 items, [\d.]+ KiB\n", looked.stderr
    )
    assert run("filter", "import", f"{name} 2", file).returncode == 0
    assert run("filter", "copy", name, f"{name} 3").returncode == 0
    assert run("filter", "rename", f"{name} 3", f"{name} 4").returncode == 0
    for number in (2, 4):
        with BloomFilter.open(f"{name} {number}", client=valkey) as made:
            assert made.exists_many(["forgotten", *LINES]) == [False] + [True] * 1000


@pytest.mark.usefixtures("bloom")
def test_through_pipes(run, name, valkey):
    written = run("filter", "export", name, "-")
    assert written.returncode == 0
    again = run("filter", "import", f"{name} 2", "-", given=written.stdout)
    assert (again.returncode, again.stdout) == (0, b""), again.stderr
    with BloomFilter.open(f"{name} 2", client=valkey) as made:
        assert made.exists_many(LINES) == [True] * 1000
    cut = run("filter", "import", f"{name} 3", "-", given=written.stdout[:-1])
    assert cut.returncode == 2
    assert re.fullmatch(rb"bloomlock: [^\n]+ was cut at byte \d+ of \d+\n", cut.stderr)
    assert f"{name} 3" not in list_filters(client=valkey)


@pytest.mark.usefixtures("bloom")
def test_a_dry_run_looks_and_changes_nothing(run, name, tmp_path, valkey):
    file = tmp_path / "urls.bloom"
    done = run("filter", "export", "--dry-run", name, str(file))
    assert done.returncode == 0
    assert done.stderr.startswith(b"bloomlock: would write ")
    assert not file.exists()
    run("filter", "export", name, str(file))
    with redis.Redis.from_url(valkey) as client:
        before = {key: client.dump(key) for key in client.scan_iter(f"*{name}*")}
        assert run("filter", "import", "-n", f"{name} 2", str(file)).stderr.startswith(
            b"bloomlock: would import "
        )
        assert run("filter", "copy", "-n", name, f"{name} 2").stderr.startswith(
            b"bloomlock: would copy "
        )
        for command in (("import", "-n", name, str(file)), ("copy", "-n", name)):
            refused = run("filter", *command)
            assert refused.returncode == 2
            assert b"is taken by another filter; give --replace" in refused.stderr
        data = bytearray(file.read_bytes())
        data[5000] ^= 1
        file.write_bytes(data)
        damaged = run("filter", "import", "-n", f"{name} 2", str(file))
        assert damaged.returncode == 2
        assert b"is damaged: the bytes 4096 to " in damaged.stderr
        assert {key: client.dump(key) for key in client.scan_iter(f"*{name}*")} == before


@pytest.mark.usefixtures("bloom")
def test_copy_to_another_server(run, name):
    with PrivateServer() as other:
        done = run("filter", "copy", name, "--to", other.url)
        assert (done.returncode, done.stdout) == (0, b"")
        with BloomFilter.open(name, client=other.url) as made:
            assert made.exists_many(LINES) == [True] * 1000
        assert run("filter", "copy", name, "--to", other.url).returncode == 2
        assert run("filter", "copy", "--replace", name, "--to", other.url).returncode == 0
        url = other.url
    assert b"no Redis server answers" in run("filter", "copy", name, "--to", url).stderr


def test_what_is_not_there_or_not_whole_is_one_sentence(run, name, tmp_path, valkey):
    file = tmp_path / "none"
    for arguments in (
        ("export", name, str(file)),
        ("copy", name),
        ("import", name, str(file)),
        ("import", name, str(tmp_path)),
        ("import", "-n", name, "-"),
        ("import", "-n", name, str(file)),
        ("export", name, str(tmp_path / "no" / "such")),
    ):
        done = run("filter", *arguments)
        assert (done.returncode, done.stdout) == (2, b"")
        assert re.fullmatch(rb"bloomlock: [^\n]+\n", done.stderr), done.stderr
    assert name not in list_filters(client=valkey)
    assert not file.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_import_that_is_interrupted_leaves_nothing(start, run, name, bloom, number, valkey):
    data = run("filter", "export", name, "-").stdout
    process = start("filter", "import", f"{name} 2", "-")
    process.stdin.write(data[: len(data) // 2])
    process.stdin.flush()
    with redis.Redis.from_url(valkey) as client:
        wait_until(lambda: client.keys(f"*{name} 2*:prepared:*"))
        os.kill(process.pid, number)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(data[len(data) // 2 :])
            process.stdin.close()
        assert process.wait(PATIENCE) == -number
        assert b"run the same command again" in process.stderr.read()
        assert not client.keys(f"*{name} 2*")
    assert bloom.exists_many(LINES) == [True] * 1000


def test_a_filter_is_rebuilt_from_lines(run, name, bloom, tmp_path, valkey):
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(LINES))  # the last one has no end
    asked = run("filter", "rebuild", name, str(file), "--capacity", "50000", "--dry-run")
    assert asked.returncode == 0
    assert asked.stderr.startswith(b"bloomlock: would rebuild ")
    assert bloom.exists(LINES[0])
    done = run("filter", "rebuild", name, str(file), "--capacity", "50000")
    assert (done.returncode, done.stdout) == (0, b"")
    with BloomFilter.open(name, client=valkey) as made:
        assert made.capacity == 50_000
        assert made.exists_many(LINES) == [True] * 1000
    for wrong in ("0", "many"):
        refused = run("filter", "rebuild", name, str(file), "--capacity", wrong)
        assert refused.returncode == 2
        assert re.fullmatch(rb"bloomlock: [^\n]+\n", refused.stderr), refused.stderr
    assert run("filter", "rebuild", name, str(tmp_path / "none")).returncode == 2


def test_lines_of_a_file_that_grows_are_read_once(tmp_path):
    file = tmp_path / "lines"
    file.write_bytes(b"a\nb\nc")
    with file.open("rb") as opened, file.open("ab") as writer:
        journal = Journal([opened], lambda _count: None)
        assert list(journal.lines()) == [b"a", b"b"]
        writer.write(b"c\nd")
        writer.flush()
        assert list(journal.rest_of_lines()) == [b"cc", b"d"]
        writer.write(b"e\nf\n")
        writer.flush()
        assert list(journal.rest_of_lines()) == [b"de", b"f"]
