"""Many holds of Redlock while its servers hang, die and come back empty, one at a time."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest
import servers
from lock_chaos.harness import Chaos

from bloomlock.server import PrivateServer

pytestmark = pytest.mark.processes

HOLDS = 25
"""Of each worker: in all two seconds and a half of holding, beyond the third fault at 1.6 s."""
KINDS = ["redlock", "redlock", "async redlock", "async redlock"]


@pytest.fixture(scope="module")
def three():
    binary = servers.require_server("valkey")
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(PrivateServer(binary=binary)) for _ in range(3)]


@pytest.fixture
def chaos(forks, three, tmp_path, seed):
    with Chaos(forks, three[0].url, tmp_path, 0.5, seed) as made:
        yield made


@pytest.fixture
def patient(forks, three, tmp_path, seed):
    """Leases so long that a busy machine costs nobody his lock."""
    with Chaos(forks, three[0].url, tmp_path, 1.5, seed) as made:
        yield made


def hang(server):
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(0.4)
    os.kill(server.pid, signal.SIGCONT)


def come_back_empty(server):
    server.kill()
    time.sleep(0.1)
    server.start()


def start(chaos, three, kind):
    return chaos.worker(kind, url=" ".join(server.url for server in three))


@pytest.mark.parametrize(
    ("kind", "forgetting"), [("redlock", 1), ("redlock", 2), ("async redlock", 2)]
)
def test_servers_that_forgot_let_nobody_in_beside_the_holder(patient, three, kind, forgetting):
    one, other = start(patient, three, kind), start(patient, three, kind)
    one.do("acquire")
    one.tell("hold", seconds=4)
    one.await_event("valid")
    other.tell("acquire")
    other.await_event("asked")
    for server in three[:forgetting]:
        come_back_empty(server)
    # Nothing is excused: not even until the holder has been told.
    one.tell("release")
    other.tell("release")
    patient.judge()
    lost = int(forgetting > 1)
    assert patient.counts()["lost"] == patient.counts()["told"] == lost
    assert [hold.worker for hold in patient.holds() if hold.valid] == [0, 1]


@pytest.mark.parametrize("fault", [hang, come_back_empty])
def test_one_server_at_a_time(chaos, three, fault):
    for kind in KINDS:
        start(chaos, three, kind).tell("loop", holds=HOLDS, longest=0.05, impatient=0.2)
    hurt = iter(three)
    for _ in chaos.every(0.2, 0.4):
        # There is no fence to guard the register: it counts right only under a lock that holds.
        if (server := next(hurt, None)) is not None:
            fault(server)
    chaos.judge()
    assert [hand.count("wrote") for hand in chaos.hands] == [HOLDS] * len(KINDS)
    assert chaos.register.state().value == HOLDS * len(KINDS)
    assert {hold.fence for hold in chaos.holds()} == {None}
    assert next(hurt, None) is None
