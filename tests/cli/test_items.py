"""`add`, `exists` and `discard`: exit statuses that a script can rely on; keys are not shown."""

from __future__ import annotations

import os
import re

import pytest

from bloomlock import BloomFilter

SECRET = b"thirty-two bytes of a secret key"


@pytest.fixture
def made(r, valkey, name):
    with BloomFilter(name, 1_000_000, client=valkey) as made:
        yield made


@pytest.mark.usefixtures("made")
def test_add_counts_the_new_ones_and_tells_whether_there_were_any(run, name):
    assert run("add", name, "a", "b", "a") == (0, b"2\n", b"")
    assert run("add", name, "b", "c") == (0, b"1\n", b"")
    assert run("add", name, "b", "c") == (1, b"0\n", b"")
    assert run("add", name, given=b"a\nd\na\n\xff\0\n") == (0, b"2\n", b"")
    assert run("exists", name, given=b"b\n\xff\0").returncode == 0
    assert run("add", name) == (1, b"0\n", b"")


def test_items_are_bytes(run, name, made):
    run("add", name, os.fsdecode(b"\xff\xfe"), "é", "", "--", "-q")
    assert made.exists_many([b"\xff\xfe", "é", "", "-q", "q"]) == [True] * 4 + [False]


@pytest.mark.parametrize(
    ("items", "status"), [(["a"], 0), (["a", "b"], 0), (["a", "x"], 1), (["x"], 1), ([""], 1)]
)
def test_exists_tells_by_its_status(run, name, valkey, items, status):
    with BloomFilter(name, 1000, client=valkey) as bloom:
        bloom.update(["a", "b"])
        done = run("exists", name, *items)
        assert (done.returncode, done.stdout, done.stderr) == (status, b"", b"")
        assert bloom.count() == 2


@pytest.mark.usefixtures("made")
def test_exists_writes_what_it_is_asked_for(run, name):
    run("add", name, "a", "b")
    text = b"x\na\ny\nb\nx\n\xff"
    assert run("exists", name, "--seen", given=text).stdout == b"a\nb\n"
    assert run("exists", name, "--new", given=text).stdout == b"x\ny\nx\n\xff\n"
    assert run("exists", name, "--new", "x", "a").stdout == b"x\n"
    assert run("exists", name).returncode == 0


def test_discard_counts_what_was_there_and_touches_nothing_else(run, name, made):
    run("add", name, "a", "b", "c", "d")
    assert run("discard", name, "a", "x", "a") == (0, b"1\n", b"")
    assert run("discard", name, "a", "x") == (1, b"0\n", b"")
    assert run("discard", name, "b").returncode == 0
    assert run("discard", name, given=b"c\nx\n")[:2] == (0, b"1\n")
    assert made.exists_many(["a", "b", "c", "d"]) == [False, False, False, True]
    assert run("add", name, "a", "d").stdout == b"1\n"


# -- keys: from a file, never in the arguments, never shown ----------------------------------------


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(SECRET + b"\n")
    return str(path)


@pytest.fixture
def keyed(run, name, key_file):
    assert run("filter", "create", name, "--key-file", key_file).returncode == 0


@pytest.mark.usefixtures("keyed")
def test_a_key_file_makes_a_filter_and_opens_it(run, name, key_file, valkey):
    assert run("add", name, "a", "b", "--key-file", key_file).stdout == b"2\n"
    assert run("add", name, "a", "c", BLOOMLOCK_KEY_FILE=key_file).stdout == b"1\n"
    assert run("exists", name, "a", "--key-file", key_file).returncode == 0
    with BloomFilter.open(name, client=valkey, key=SECRET) as made:
        assert made.exists_many(["a", "b", "c", "d"]) == [True, True, True, False]
    shown = run("filter", "info", name, "--key-file", key_file)
    assert re.search(rb"key kind +secret", shown.stdout)
    listed = run("filter", "top", BLOOMLOCK_KEY_FILE=key_file)
    assert name.encode() in listed.stdout
    deduped = run("dedup", "--name", name, "--key-file", key_file, given=b"a\nd\n")
    assert deduped.stdout == b"d\n"
    once = run("once", "--key-file", key_file, name, "d", "false")
    assert once.returncode == 0, "it is done"
    assert run("filter", "clear", "-y", name, "--key-file", key_file).returncode == 0
    assert run("add", name, "a", "--key-file", key_file).stdout == b"1\n"
    assert run("filter", "delete", "-y", name).returncode == 0
    assert SECRET not in shown.stdout + shown.stderr + listed.stdout + listed.stderr


@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize("words", ["add n b", "filter clear -y n"])
def test_without_the_key_or_with_another_there_is_one_sentence(
    run, refuse, name, key_file, tmp_path, *, words
):
    assert run("add", name, "a", "--key-file", key_file).returncode == 0
    (tmp_path / "other").write_bytes(b"another secret key")
    arguments = [name if word == "n" else word for word in words.split()]
    for extra in ([], ["--key-file", str(tmp_path / "other")]):
        refuse(2, "key: stored", *arguments, *extra)
        assert b"another secret" not in run(*arguments, *extra).stderr
    assert run("exists", name, "a", "--key-file", key_file).returncode == 0


@pytest.mark.usefixtures("made")
def test_a_filter_without_a_key_is_taken_whatever_key_there_is(run, name, key_file):
    assert run("add", name, "a", BLOOMLOCK_KEY_FILE=key_file).returncode == 0
    assert run("exists", name, "a", BLOOMLOCK_KEY_FILE=key_file).returncode == 0
