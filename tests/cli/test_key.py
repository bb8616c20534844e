"""Keys on the command line: from a file, never in the arguments, never shown."""

from __future__ import annotations

import pytest

from bloomlock import BloomFilter

SECRET = b"thirty-two bytes of a secret key"


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(SECRET + b"\n")
    return str(path)


def test_a_key_file_makes_a_filter_and_opens_it(run, name, key_file, valkey):
    assert run("add", name, "a", "b", "--key-file", key_file).stdout == b"2\n"
    assert run("add", name, "a", "c", BLOOMLOCK_KEY_FILE=key_file).stdout == b"1\n"
    assert run("exists", name, "a", "--key-file", key_file).returncode == 0
    with BloomFilter.open(name, client=valkey, key=SECRET) as made:
        assert made.exists_many(["a", "b", "c", "d"]) == [True, True, True, False]
    shown = run("info", name, "--key-file", key_file)
    assert b"key                     secret\n" in shown.stdout
    listed = run("ls", "-l", BLOOMLOCK_KEY_FILE=key_file)
    assert listed.returncode == 0
    assert name.encode() in listed.stdout
    deduped = run("dedup", "--name", name, "--key-file", key_file, given=b"a\nd\n")
    assert deduped.stdout == b"d\n"
    assert run("clear", "-y", name, "--key-file", key_file).returncode == 0
    assert run("add", name, "a", "--key-file", key_file).stdout == b"1\n"
    assert run("delete", "-y", name).returncode == 0
    assert SECRET not in shown.stdout + shown.stderr + listed.stdout + listed.stderr


@pytest.mark.parametrize("command", ["add", "exists", "info", "clear"])
def test_without_the_key_or_with_another_there_is_one_sentence(
    run, name, key_file, tmp_path, command
):
    run("add", name, "a", "--key-file", key_file)
    (tmp_path / "other").write_bytes(b"another secret key")
    arguments = {"add": ["b"], "exists": ["a"], "info": [], "clear": ["-y"]}[command]
    for extra in ([], ["--key-file", str(tmp_path / "other")]):
        done = run(command, name, *arguments, *extra)
        assert done.returncode == 2
        assert done.stderr.count(b"\n") == 1
        assert b"key: stored" in done.stderr
        assert b"another secret" not in done.stderr
    assert run("exists", name, "a", "--key-file", key_file).returncode == 0


def test_a_filter_without_a_key_is_read_whatever_key_there_is(run, name, key_file):
    run("add", name, "a")
    assert run("exists", name, "a", BLOOMLOCK_KEY_FILE=key_file).returncode == 0
    assert run("info", name, BLOOMLOCK_KEY_FILE=key_file).returncode == 0
    refused = run("add", name, "b", BLOOMLOCK_KEY_FILE=key_file)
    assert refused.returncode == 2
    assert b"key: stored none, asked a secret one" in refused.stderr


def test_a_random_key_needs_no_file(run, name):
    assert run("add", name, "a", "--random-key").stdout == b"1\n"
    assert run("add", name, "a").stdout == b"0\n"
    assert run("add", name, "a", "--random-key").stdout == b"0\n"
    assert b"key                     random, stored with the filter\n" in run("info", name).stdout
    assert run("dedup", "--random-key", given=b"a\na\nb\n", url=None).stdout == b"a\nb\n"


def test_keys_that_are_not_usable(run, name, key_file, tmp_path):
    (tmp_path / "short").write_bytes(b"secret\n")
    for arguments, said in (
        (["--key-file", str(tmp_path / "none")], b"cannot read the key file"),
        (["--key-file", str(tmp_path / "short")], b"key must be 16 to 64 bytes"),
        (["--key-file", key_file, "--random-key"], b"exclude each other"),
    ):
        done = run("add", name, "a", *arguments)
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count(b"\n") == 1
    assert name.encode() not in run("ls").stdout
