"""What a start imports: no more than what is used, by `sys.modules` of a process of its own.

redis-py imports asyncio itself, whichever of its modules is wanted, so whatever has a client has
asyncio too. What of bloomlock is for asyncio it does not have.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys

import pytest

SHOWN = "; import sys; print('modules:', *sorted(sys.modules))"
COMMAND = """\
import sys
from bloomlock.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert end.code == 0, end.code
"""
FOR_ASYNCIO = {
    "bloomlock.runtime.tasks",
    "bloomlock.filters.async_bloom",
    "bloomlock.filters.coalescing",
    "bloomlock.locks.async_lock",
    "bloomlock.locks.async_redlock",
    "bloomlock.locks.async_watchdog",
}
OF_SERVERS = {"bloomlock.server.embedded", "bloomlock.server.private", "filelock", "platformdirs"}


def modules_after(code: str, *arguments: str, pure: bool = False) -> set[str]:
    """What a new process has imported when it has run the code."""
    done = subprocess.run(
        [sys.executable, "-c", code.rstrip() + SHOWN.replace("; ", "\n", 1), *arguments],
        env={**os.environ, "BLOOMLOCK_PURE": str(int(pure))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("modules: ")[2].split())


def test_the_package_alone_imports_nothing_else():
    found = modules_after("import bloomlock")
    assert {name for name in found if name.startswith("bloomlock")} == {"bloomlock"}
    assert not found & {"asyncio", "numpy", "redis", "mmh3", "click", "rich"}


def test_locks_import_neither_numpy_nor_filters():
    found = modules_after("from bloomlock import Lock, LockLostError, Redlock")
    assert not found & {"numpy", "mmh3", "bloomlock.filters", *FOR_ASYNCIO, *OF_SERVERS}
    found = modules_after("from bloomlock import AsyncLock, AsyncRedlock")
    assert not found & {"numpy", "mmh3", "bloomlock.filters", *OF_SERVERS}


@pytest.mark.parametrize("pure", [False, True])
def test_adding_one_item_imports_no_numpy(valkey, pure):
    code = f"""
from bloomlock import BloomFilter
for layout in ("classic", "blocked"):
    bloom = BloomFilter("{unique()}-" + layout, 1000, layout=layout, client="{valkey}")
    assert bloom.add("a") and not bloom.add("a") and bloom.exists("a") and not bloom.exists("b")
"""
    found = modules_after(code, pure=pure)
    assert ("bloomlock._speed" in found) <= (not pure)
    assert not found & {"numpy", "click", "rich", *FOR_ASYNCIO, *OF_SERVERS}


def test_a_batch_imports_numpy(valkey):
    code = f"""
from bloomlock import BloomFilter
bloom = BloomFilter("{unique()}", 1000, client="{valkey}")
assert all(bloom.add_many(map(str, range(1000))))
"""
    assert "numpy" in modules_after(code)


def test_the_help_imports_no_client():
    found = modules_after(COMMAND, "--help")
    assert not found & {"asyncio", "numpy", "redis", "mmh3", "rich", "scrapy", "bloomlock.filters"}


def test_a_command_for_one_item_imports_no_numpy(valkey):
    arguments = (unique(), "a", "--url", valkey)
    for command in ("add", "exists"):
        found = modules_after(COMMAND, command, *arguments)
        assert not found & {"numpy", "rich", "scrapy", *FOR_ASYNCIO, *OF_SERVERS}


def unique() -> str:
    return f"start-{secrets.token_hex(4)}"
