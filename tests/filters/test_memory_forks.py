"""A fork while another thread is inside a filter leaves the child a filter that can be used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bloomlock.filters.fill import FillWatch
from bloomlock.filters.memory_bits import PythonBits
from bloomlock.filters.options import FilterOptions
from bloomlock.filters.state import FilterState
from bloomlock.keys import DEFAULT_PREFIX, FilterKeys
from bloomlock.spec import RequestedSpec

# In a process of its own: one that forks while its threads work should be thrown away. The source
# of an update is read inside the call, so that the fork comes in the middle of it.
PROGRAM = """
import os, threading, warnings
from bloomlock import MemoryBloomFilter

warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
made = MemoryBloomFilter(100_000, shards=2)
made.update(map(str, range(1_000)))
inside, go_on = threading.Event(), threading.Event()

def items():
    yield from map(str, range(1_000, 30_000))
    inside.set()
    go_on.wait()
    yield "the last"

thread = threading.Thread(target=made.update, args=(items(),))
thread.start()
inside.wait()
child = os.fork()
if not child:
    right = all(made.exists_many(map(str, range(1_000))))
    right = right and made.add("mine") and not made.add("mine")
    made.update(["mine, too"])
    right = right and "mine, too" in made and len(made.copy()) >= 1_000
    os._exit(0 if right else 3)
ended = os.waitpid(child, 0)[1]
go_on.set()
thread.join()
print(ended, "the last" in made, "mine" in made)
"""


def test_a_child_that_is_forked_in_the_middle_of_an_update_has_a_filter_of_its_own():
    # The limit only guards against a child that hangs.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout.split() == ["0", "True", "False"]


OWNERS = {
    "bits": lambda: PythonBits(RequestedSpec.check(100, 0.01).describe().hasher(), []),
    "fill": lambda: FillWatch("x", refuse=False),
    "state": lambda: FilterState(FilterKeys("x", DEFAULT_PREFIX), FilterOptions(), None),
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
