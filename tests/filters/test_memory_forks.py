"""A fork while other threads are at work leaves the child a filter that can be used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from bloomlock.filters.fill import FillWatch
from bloomlock.filters.memory_bits import MemoryBits
from bloomlock.filters.options import OpenOptions
from bloomlock.filters.state import FilterState, Unreported
from bloomlock.keys import DEFAULT_PREFIX, FilterKeys
from bloomlock.parameters import Wanted

FORKS = 40
SECONDS = 60

# In a process of its own: one that forks while its threads work should be thrown away.
PROGRAM = """
import os, sys, threading, warnings
from bloomlock import MemoryBloomFilter

warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
made = MemoryBloomFilter(100_000, **eval(sys.argv[1]))
made.update(map(str, range(1_000)))
batch = [f"later {number}" for number in range(20_000)]
going_on = True

def work(call):
    while going_on:
        call()

calls = [lambda: made.update(batch), lambda: made.add_many(batch), lambda: made.add("one")]
threads = [threading.Thread(target=work, args=(call,), daemon=True) for call in calls]
for thread in threads:
    thread.start()
sys.setswitchinterval(1e-5)
children = []
for number in range(int(sys.argv[2])):
    child = os.fork()
    if not child:
        right = all(made.exists_many(map(str, range(1_000))))
        right = right and made.add("mine") and not made.add("mine")
        made.update(["mine, too"])
        right = right and "mine, too" in made and len(made.copy()) >= 1_000
        os._exit(0 if right else 3)
    children.append(child)
going_on = False
print([os.waitpid(child, 0)[1] for child in children])
"""


@pytest.mark.parametrize("shape", [{}, {"layout": "blocked", "shards": 2}], ids=str)
def test_a_child_of_a_process_that_is_updating_hangs_never(shape):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, repr(shape), str(FORKS)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = program.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        # The children that hang have its group.
        os.killpg(program.pid, signal.SIGKILL)
        program.communicate()
        pytest.fail("at least one child hung")
    assert said.strip() == str([0] * FORKS)


KEYS = FilterKeys("x", DEFAULT_PREFIX)
OWNERS = {
    "bits": lambda: MemoryBits(Wanted.check(100, 0.01).describe()),
    "fill": lambda: FillWatch("x", refuse=False),
    "unreported": Unreported,
    "core": lambda: FilterState(KEYS, OpenOptions(), None),
}


@pytest.mark.parametrize("what", OWNERS)
def test_a_lock_held_at_the_fork_is_free_in_the_child_and_held_in_the_parent(what):
    owner = OWNERS[what]()
    with owner._lock:
        child = os.fork()
        if not child:
            os._exit(0 if owner._lock.acquire(blocking=False) else 3)
        assert os.waitpid(child, 0)[1] == 0
        assert owner._lock.locked()
