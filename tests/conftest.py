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
import zlib
from functools import cache
from typing import TYPE_CHECKING

import hypothesis
import pytest
import redis
import servers
from claim_tools import Clock
from moved_clock import stopped_server

from bloomlock import server
from bloomlock.runtime import clients

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from moved_clock import Stopped

# Helpers have no examples, and some import clients of other systems.
collect_ignore = ["support"]

_HOME = pytest.StashKey[str]()

QUICK = (
    "bloomlock",
    "tests/unit",
    "tests/contract",
    "tests/cli/test_lines.py",
)
"""What `-m quick` runs: the pure parts, and something of each area on a real server."""
QUICK_CONTRACTS = (
    "an_item_is_new_once_and_then_seen",
    "batches_answer_in_order_and_update_answers_nothing",
    "of_an_item_that_a_batch_repeats_the_first_is_new",
    "an_item_is_remembered_for_the_window_and_a_slice_more_at_most",
    "it_takes_more_items_than_its_capacity_at_its_error_rate",
    "one_holder_at_a_time",
    "a_release_hands_it_to_the_next_waiter",
    "a_loss_is_reported",
)
"""Of tests/contract these tests, on each backend but for those that start servers of their own."""
QUICK_BACKENDS_NOT = ("TestCluster", "TestOldest", "TestNewest", "TestOtherServers")
LONGEST = (
    "tests/contract/test_filters.py",
    "tests/benchmarks/test_suites.py",
    "tests/filters/test_copies.py",
    "tests/explorers/test_windows.py",
    "tests/contract/test_locks.py",
    "tests/filters/test_imports.py",
    "tests/scrapy_ext/test_crawl_command.py",
    "tests/explorers/test_claims.py",
    "tests/filters/test_feature_walks.py",
    "tests/scrapy_ext/test_crawls.py",
)
"""The files that take longest. They start first, else all would wait for the last of them."""
SLOW = ("long", "measures", "thorough")
"""Markers of tests in these files that it leaves out."""
MOST_FREE_RUNNING = 10
"""Test functions without --long in which threads or processes run in no fixed order."""

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

# redis-py reads it from disk for each connection, which takes as long as a hundred commands.
redis.utils.get_lib_version = cache(redis.utils.get_lib_version)

# No test asserts a time, these neither: a machine that stands still for a second makes it slow to
# draw the first examples.
for name, derandomize in (("fixed", True), ("random", False)):
    hypothesis.settings.register_profile(
        name,
        deadline=None,
        derandomize=derandomize,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="Run the tests that take many minutes; seeds are random.",
    )
    parser.addoption(
        "--seed", help="A number for all tests that draw, or `random`; else each has its own."
    )


def is_random(config: pytest.Config) -> bool:
    """Return whether seeds are drawn, so that another run tests something else."""
    given = config.getoption("--seed")
    return given == "random" or (given is None and config.getoption("--long"))


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
    marker = pytest.mark.skip(reason="takes many minutes; --long runs it")
    if config.getoption("--long"):
        marker = pytest.mark.timeout(7200)
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(marker)
    quick, longest = ([config.rootpath / path for path in paths] for paths in (QUICK, LONGEST))
    places = {path: place for place, path in enumerate(longest)}
    items.sort(key=lambda item: places.get(item.path, len(longest)))
    files = {item.path for item in items}
    quick_files = {file for file in files if any(map(file.is_relative_to, quick))}
    contracts = config.rootpath / "tests/contract"
    for item in items:
        is_quick = item.path in quick_files and not any(map(item.get_closest_marker, SLOW))
        if is_quick and item.path.is_relative_to(contracts):
            name = item.nodeid.partition("::test_")[2].partition("[")[0]
            elsewhere = any(f"::{backend}::" in item.nodeid for backend in QUICK_BACKENDS_NOT)
            is_quick = name in QUICK_CONTRACTS and not elsewhere
        if is_quick:
            item.add_marker("quick")
    free = {
        item.nodeid.partition("[")[0]
        for item in items
        if item.get_closest_marker("free_running") and not item.get_closest_marker("long")
    }
    if len(free) > MOST_FREE_RUNNING:
        raise pytest.UsageError(f"more than {MOST_FREE_RUNNING} tests run freely: {sorted(free)}")


def pytest_collection_finish() -> None:
    """Look for garbage in what tests make, and not again and again in all that was collected."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    # Workers take files in the order of LONGEST, and not by their number of tests.
    config.option.loadscopereorder = False
    if (given := config.getoption("--seed")) not in (None, "random") and not given.isdecimal():
        raise pytest.UsageError(f"--seed must be a number or `random`, not {given!r}")
    hypothesis.settings.load_profile("random" if is_random(config) else "fixed")
    if config.option.markexpr == "quick":
        # All in the time that somebody waits for; the whole run draws five times as many.
        examples = hypothesis.settings(hypothesis.settings(), max_examples=20)
        hypothesis.settings.register_profile("few", examples)
        hypothesis.settings.load_profile("few")
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
    """A number that the test's id gives, or --seed; printed, so that a failure can be repeated."""
    given = request.config.getoption("--seed")
    if is_random(request.config):
        seed = random.randrange(2**32)
    elif given is not None:
        seed = int(given)
    else:
        seed = zlib.crc32(request.node.nodeid.encode())
    print(f"seed {seed}")
    return seed


@pytest.fixture(scope="session")
def all_servers() -> Iterator[servers.Running]:
    with contextlib.ExitStack() as stack:
        yield servers.Running(stack)


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Stopped]]:
    """Gives, by its kind, a server whose clock stands still, emptied."""
    with contextlib.ExitStack() as stack:

        @cache
        def start(kind: str) -> Stopped:
            return stack.enter_context(stopped_server(kind, tmp_path_factory.mktemp("clock")))

        def find(kind: str = "valkey") -> Stopped:
            start(kind)[0].flushall()
            return start(kind)

        yield find


@pytest.fixture
def clock(stopped: Callable[..., Stopped], monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clocks of such a server and of all clients here."""
    return Clock(monkeypatch, stopped())


@pytest.fixture
def has_bloom(request: pytest.FixtureRequest) -> bool:
    """Whether the test's servers have BF.*: where one of its parameters is "native"."""
    spec = getattr(request.node, "callspec", None)
    return spec is not None and any(value == "native" for value in spec.params.values())


@pytest.fixture
def valkey(all_servers: servers.Running, has_bloom: bool) -> str:
    return all_servers.url("valkey", bloom=has_bloom)


@pytest.fixture(scope="session")
def nodes() -> Iterator[list[redis.Redis]]:
    """Three masters that own a third of the slots each, with BF.* where the machine has it."""
    with servers.cluster(more=servers.with_bloom() if servers.bloom_module() else {}) as made:
        yield made


@pytest.fixture
def cluster(nodes: list[redis.Redis], has_bloom: bool) -> Iterator[redis.RedisCluster]:
    """A client of that cluster, emptied."""
    if has_bloom:
        servers.with_bloom()
    for node in nodes:
        node.flushall()
    with redis.RedisCluster(host="127.0.0.1", port=servers.port_of(nodes[0])) as made:
        yield made


@pytest.fixture(params=servers.KINDS)
def server_url(
    request: pytest.FixtureRequest, all_servers: servers.Running, has_bloom: bool
) -> str:
    return all_servers.url(request.param, bloom=has_bloom)


@pytest.fixture
def r(valkey: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey) as made:
        made.flushall()
        yield made


@pytest.fixture
def client(server_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server_url) as made:
        made.flushall()
        yield made
