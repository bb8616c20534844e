"""Processes of tests that begin at once: forks of one that has imported what all of them need.

A process of its own that imports pytest, as every module of tests does, has half a second of work
before it comes to its task.
"""

from __future__ import annotations

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
# Whichever test is the first of its worker starts the server for all that follow.
FORKS.set_forkserver_preload(
    [
        "pytest",
        "numpy",
        "redis.asyncio",
        "bloomlock.filters._async.bloom",
        "bloomlock.filters._sync.bloom",
        "bloomlock.locks.redlock",
        "bloomlock.server",
    ]
)
