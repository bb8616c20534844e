"""One lock that threads and tasks use through objects of all kinds, while they are disturbed."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
from lock_walk import Walk
from people import Loop

from bloomlock.locks._async import lock as async_lock
from bloomlock.locks.protocol import waiting

STEPS = 80
PATIENCE = 60.0
WAYS = {"attempt", "leave", "cancel", "again", "look", "flush", "kill", "wipe", "renew"}


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    # A busy machine may take longer for a reply, one that was lost before it.
    for module, name in (
        (waiting, "GRACE_SECONDS"),
        (waiting, "CLEANUP_SECONDS"),
        (async_lock, "GRACE_SECONDS"),
    ):
        monkeypatch.setattr(module, name, PATIENCE)


def walk(url, clock, seeds):
    """Walk once for each seed; an error names the seed and the way."""
    done = Counter()
    for seed in seeds:
        with Loop() as loop, contextlib.ExitStack() as stack:
            made = Walk(url, seed, clock, loop, stack)
            try:
                for _ in range(STEPS):
                    made.step()
                made.end()
            except BaseException as error:
                error.add_note(f"seed {seed}: {made.path}")
                raise
            finally:
                made.close()
            done += made.done
    return done


def test_the_server_has_the_holders_and_waiters_of_the_model(valkey, clock, seed):
    done = walk(valkey, clock, [f"{seed}/{number}" for number in range(6)])
    assert done.keys() >= WAYS


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_the_same_in_hundreds_of_walks(valkey, clock, seed):
    walk(valkey, clock, [f"{seed}/{number}" for number in range(500)])
