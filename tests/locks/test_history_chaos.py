"""Many holds of many workers while connections, scripts, data and servers go away at random."""

from __future__ import annotations

import random
import threading

import pytest
import servers
from lock_chaos.harness import KEYS, NO_SCRIPTS, Chaos
from proxy import PUSH

from bloomlock.server import PrivateServer

pytestmark = pytest.mark.processes

ONE_OF_EACH = [["lock"], ["fair"], ["reentrant"], ["read", "write"], ["async"]]
"""What each worker uses; all of these are one lock on the server."""
ALL_ALIKE = {"+".join(kinds): [kinds] * 4 for kinds in ONE_OF_EACH}
HANDSHAKE = {"HELLO", "CLIENT", "PING", "SELECT", "AUTH", "INFO"}


@pytest.fixture(params=ALL_ALIKE)
def alike(request):
    return ALL_ALIKE[request.param]


def start(chaos, crew, holds, url=None, **options):
    for kinds in crew:
        chaos.worker(*kinds, url=url).tell("loop", holds=holds, **options)


def judge(chaos, crew, holds):
    """Every worker had all its holds, each of them alone, and not one write was lost."""
    chaos.judge()
    for hand in chaos.hands:
        assert hand.count("wrote") + hand.count("read") == holds
    assert chaos.counts()["wrote"] == chaos.register.state().value
    assert len(chaos.hands) == len(crew)


def cutter(seed, every):
    """Cut two of each `every` commands, and as many pushes: one before the server, one after.

    Which two is random. That there are two is not, so no run is without a cut.
    """
    pick = random.Random(seed)
    decks = {True: [], False: []}
    one_at_a_time = threading.Lock()

    def verdict(name, _number):
        if name in HANDSHAKE:
            return "pass"
        pushed = name == PUSH
        with one_at_a_time:
            if not (deck := decks[pushed]):
                deck += ["after", "after" if pushed else "before", *["pass"] * (every - 2)]
                pick.shuffle(deck)
            return deck.pop()

    return verdict


def test_lost_commands_and_replies(chaos, cutting, alike):
    cutting.judge = cutter(chaos.seed, every=40)
    start(chaos, alike, 20, url=cutting.url, impatient=0.2)
    judge(chaos, alike, 20)
    assert cutting.cuts["before"] > 0
    assert cutting.cuts["after"] > 0


def test_killed_connections(chaos, alike):
    start(chaos, alike, 20, impatient=0.2)
    killed = 0
    for _ in chaos.every(0.01, 0.05):
        kind = chaos.random.choice(["normal", "pubsub"])
        killed += chaos.server.client_kill_filter(_type=kind, skipme=True)
    judge(chaos, alike, 20)
    assert killed > 0


def test_flushed_scripts(chaos, alike):
    start(chaos, alike, 30, impatient=0.2)
    for _ in chaos.every(0.0, 0.02):
        chaos.server.script_flush()
    judge(chaos, alike, 30)
    assert chaos.counts()["lost"] == 0
    assert chaos.errors("failed").keys() <= {"timeout", "cancelled"}
    # Nobody who gave up, or was cancelled, left a hold or a place in the queue behind.
    assert not chaos.server.exists(KEYS.lock, KEYS.holders, KEYS.queue)


def test_stopped_holders(chaos):
    start(chaos, ONE_OF_EACH, 10, longest=0.1, impatient=0.2)
    stopped = 0
    while stopped < 2 and (hand := chaos.stop_one("acquired")):
        chaos.outlast(hand)
        hand.go_on()
        stopped += 1
    judge(chaos, ONE_OF_EACH, 10)
    assert stopped > 0


def test_killed_workers(chaos):
    # No worker waits behind a dead one, so it takes many holds to be busy for both kills.
    start(chaos, ONE_OF_EACH, 100, impatient=0.2)
    for state in ("acquired", "asked"):
        if victim := chaos.stop_one(state):
            victim.kill()
    chaos.judge()
    living = [hand for hand in chaos.hands if not hand.count("killed")]
    assert len(living) < len(chaos.hands)
    assert {hand.count("wrote") + hand.count("read") for hand in living} == {100}


def test_a_server_that_forgets(chaos):
    start(chaos, ONE_OF_EACH, 5, longest=0.2)
    for _ in chaos.every(0.05, 0.3):
        chaos.flush()
    judge(chaos, ONE_OF_EACH, 5)
    assert len(chaos.wipes) > 1


def restart_twice(chaos, server, *, forgets):
    """Restart the server while the lock is held, the second time if any worker still works."""
    restarts = 0
    while restarts < 2 and (hand := chaos.stop_one("acquired")):
        hand.go_on()
        chaos.restart(server, forgets=forgets)
        restarts += 1
    assert restarts > 0


def test_a_restart_that_forgets(chaos, chaos_server):
    start(chaos, ONE_OF_EACH, 10, longest=0.1)
    restart_twice(chaos, chaos_server, forgets=True)
    judge(chaos, ONE_OF_EACH, 10)


@pytest.fixture(scope="module")
def keeper():
    """Run a server that has all it was told on disk before it answers."""
    with PrivateServer(
        binary=servers.require_server("valkey"),
        config={"appendonly": True, "appendfsync": "always"},
    ) as server:
        yield server


def test_a_restart_that_forgets_nothing_excuses_nothing(forks, keeper, tmp_path, seed):
    with Chaos(forks, keeper.url, tmp_path, 1.0, seed) as chaos:
        start(chaos, ONE_OF_EACH, 10, longest=0.1)
        restart_twice(chaos, keeper, forgets=False)
        judge(chaos, ONE_OF_EACH, 10)


OTHERS = {"redis7": ("redis7", {}), "redis62": ("redis62", {}), "no EVAL": ("valkey", NO_SCRIPTS)}


@pytest.mark.parametrize("server", OTHERS)
def test_other_servers(forks, tmp_path, server, seed):
    kind, config = OTHERS[server]
    with (
        PrivateServer(binary=servers.require_server(kind), config=config) as private,
        Chaos(forks, private.url, tmp_path, 0.5, seed) as chaos,
    ):
        start(chaos, ONE_OF_EACH, 20, impatient=0.2)
        for _ in chaos.every(0.02, 0.1):
            chaos.server.client_kill_filter(_type="normal", skipme=True)
            chaos.server.script_flush()
        judge(chaos, ONE_OF_EACH, 20)


def test_together_with_redis_py(chaos):
    """Its lock of the same key and ours keep each other out."""
    hands = [chaos.worker("lock"), chaos.worker("lock"), chaos.worker("redis-py", name=KEYS.lock)]
    for hand in hands:
        hand.tell("loop", holds=6)
    chaos.judge()
    assert chaos.counts()["wrote"] == chaos.register.state().value == 18


def test_all_at_once(chaos, cutting):
    cutting.judge = cutter(chaos.seed, every=100)
    start(chaos, ONE_OF_EACH, 15, url=cutting.url, longest=0.05, impatient=0.2)
    stopped = 0
    for _ in chaos.every(0.02, 0.1):
        chaos.server.script_flush()
        chaos.server.client_kill_filter(_type="normal", skipme=True)
        if stopped < 2 and chaos.random.random() < 0.3 and (hand := chaos.stop_one("acquired")):
            chaos.outlast(hand)
            hand.go_on()
            stopped += 1
    judge(chaos, ONE_OF_EACH, 15)
