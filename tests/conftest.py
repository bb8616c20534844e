"""Servers for all tests, and a home for the embedded one that is not the user's."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import signal
import sys
import tempfile
from typing import TYPE_CHECKING

import hypothesis
import pytest
import redis
import servers

from bloomlock import server
from bloomlock.runtime import clients

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Helpers have no examples, and some import clients of other systems.
collect_ignore = ["support"]

_HOME = pytest.StashKey[str]()

QUICK = (
    "bloomlock",
    "tests/unit",
    "tests/cli/test_items.py",
    "tests/cli/test_lines.py",
    "tests/filters/test_crossing.py",
    "tests/filters/test_repeats.py",
    "tests/locks/test_redis_py_habits.py",
    "tests/locks/test_threading_habits.py",
    "tests/locks/redlock/test_attempt.py",
    "tests/locks/redlock/test_steps.py",
    "tests/scrapy_ext/test_crawl_parts.py",
    "tests/server/test_command.py",
    "tests/server/test_places.py",
)
"""What `-m quick` runs: the pure parts, and something of each area on a real server."""
LONGEST = (
    "tests/scrapy_ext/test_crawl_job.py",
    "tests/filters/test_whole_model.py",
    "tests/filters/test_processes.py",
    "tests/runtime/test_slot_moves.py",
    "tests/locks/test_history_chaos.py",
    "tests/filters/test_lifecycle.py",
    "tests/filters/test_model.py",
    "tests/filters/test_portable_kinds.py",
    "tests/filters/test_portable.py",
    "tests/filters/test_window_interleavings.py",
    "tests/filters/test_lost_replies.py",
    "tests/locks/protocol/test_interleavings.py",
    "tests/filters/test_vanishing.py",
    "tests/filters/test_growing.py",
    "tests/benchmarks/test_smoke.py",
    "tests/benchmarks/test_engine_smoke.py",
    "tests/scrapy_ext/test_mark.py",
    "tests/scrapy_ext/test_sites.py",
    "tests/scrapy_ext/test_scheduler.py",
    "tests/locks/test_history_faults.py",
    "tests/filters/test_forget_interleavings.py",
    "tests/filters/test_state_machine.py",
    "tests/cli/test_lock_together.py",
    "tests/cli/test_load.py",
)
"""The files that take longest. They start first, else all would wait for the last of them."""
WAITING = "tests/locks"
"""Tests that mostly wait: for a lease to end, or for a renewal. The others need a processor."""
SLOW = ("long", "measures", "thorough")
"""Markers of tests in these files that it leaves out."""

# Where bytecode is not kept, each of the hundreds of processes that tests start would compile all
# that it imports, and each worker of pytest all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell ignores SIGINT for what it starts in the background, and commands inherit that.
for interrupt in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(interrupt) is signal.SIG_IGN:
        signal.signal(interrupt, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test asserts a time, these neither: a machine that stands still for a second makes it slow to
# draw the first examples.
hypothesis.settings.register_profile(
    "no deadline", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("no deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="Run the tests that take many minutes.")
    parser.addoption("--seed", type=int, help="The seed of randomized tests, to repeat one.")
    parser.addoption("--model-answers", type=int, default=1_000_000, help="Answers it judges.")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m quick`, import only the files that have such tests."""
    if config.option.markexpr != "quick":
        return None
    quick = [config.rootpath / path for path in QUICK]
    kept = any(
        collection_path.is_relative_to(path) or path.is_relative_to(collection_path)
        for path in quick
    )
    return None if kept else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="takes many minutes; --long runs it"))
    quick, longest = ([config.rootpath / path for path in paths] for paths in (QUICK, LONGEST))
    if gone := [str(path) for path in quick + longest if not path.exists()]:
        raise pytest.UsageError(f"tests/conftest.py names what is not there: {gone}")
    places = {path: place for place, path in enumerate(longest)}
    items.sort(key=lambda item: places.get(item.path, len(longest)))
    mix(items, config.rootpath / WAITING)
    files = {item.path for item in items}
    quick_files = {file for file in files if any(map(file.is_relative_to, quick))}
    for item in items:
        if item.path in quick_files and not any(map(item.get_closest_marker, SLOW)):
            item.add_marker("quick")


def pytest_collection_finish() -> None:
    """Look for garbage in what tests make, and not again and again in all that was collected."""
    gc.collect()
    gc.freeze()


def mix(items: list[pytest.Item], waiting: Path) -> None:
    """Spread the files of a folder over all others, both in their order.

    So at any time some of the workers wait and some work; else all would want the processors at
    first, and none at the end.
    """
    files = {path: path.is_relative_to(waiting) for path in dict.fromkeys(i.path for i in items)}
    places: dict[Path, float] = {}
    for kind in (False, True):
        alike = [path for path, waits in files.items() if waits is kind]
        places |= {path: place / len(alike) for place, path in enumerate(alike)}
    items.sort(key=lambda item: places[item.path])


def pytest_configure(config: pytest.Config) -> None:
    # Workers take files in the order of LONGEST, and not by their number of tests.
    config.option.loadscopereorder = False
    # Earlier than any fixture, so that it also holds for what modules do when they are imported
    # and for the examples in docstrings.
    home = tempfile.mkdtemp(prefix="bloomlock-tests-")
    config.stash[_HOME] = home
    os.environ["BLOOMLOCK_HOME"] = home
    for name in ("BLOOMLOCK_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    # Under nohup the commands of the tests would ignore it as well.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # A machine that stands still for a second is no server that does not answer.
    clients.CONNECT_TIMEOUT = clients.REPLY_TIMEOUT = 30.0


def pytest_unconfigure(config: pytest.Config) -> None:
    home = config.stash[_HOME]
    os.environ["BLOOMLOCK_HOME"] = home
    server.stop()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A random number, or that of --seed; printed, so that a failure can be repeated."""
    given: int | None = request.config.getoption("--seed")
    seed = random.randrange(2**32) if given is None else given
    print(f"seed {seed}")
    return seed


@pytest.fixture(scope="session")
def all_servers() -> Iterator[servers.Running]:
    """The servers of all tests."""
    with contextlib.ExitStack() as stack:
        yield servers.Running(stack)


@pytest.fixture
def has_bloom(request: pytest.FixtureRequest) -> bool:
    """Whether the test's servers have BF.*: where one of its parameters is "native"."""
    spec = getattr(request.node, "callspec", None)
    return spec is not None and any(value == "native" for value in spec.params.values())


@pytest.fixture
def valkey(all_servers: servers.Running, has_bloom: bool) -> str:
    """URL of the Valkey that bloomlock embeds."""
    return all_servers.url("valkey", bloom=has_bloom)


@pytest.fixture(params=servers.KINDS)
def server_url(
    request: pytest.FixtureRequest, all_servers: servers.Running, has_bloom: bool
) -> str:
    """URL of a server of each kind."""
    return all_servers.url(request.param, bloom=has_bloom)


@pytest.fixture
def r(valkey: str) -> Iterator[redis.Redis]:
    """A client of that Valkey, emptied."""
    with redis.Redis.from_url(valkey) as made:
        made.flushall()
        yield made


@pytest.fixture
def client(server_url: str) -> Iterator[redis.Redis]:
    """A client of an empty server of each kind."""
    with redis.Redis.from_url(server_url) as made:
        made.flushall()
        yield made
