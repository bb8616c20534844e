"""The files of docs/once.md with real workers of RQ and Dramatiq: each effect once."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pages
import pytest
from servers import wait_until

pytestmark = pytest.mark.processes
PATIENCE = 300
MORE_TASKS = """
import os
import signal

import redis

from bloomlock import InProgress

direct = redis.Redis.from_url(URL)


@once(charged, key="order", scope="dies", ttl=2, wait=100)
def die_once(order):
    if direct.set("died", 1, nx=True):
        os.kill(os.getpid(), signal.SIGKILL)
    print(f"order {order} is done by another", flush=True)


@once(charged, key="order", scope="slow")
def take_long(order):
    while not direct.exists("refused"):
        pass
    print(f"order {order} took long", flush=True)


def refused(order):
    try:
        take_long(order)
    except InProgress:
        direct.set("refused", 1)
        raise
"""
MORE_ACTORS = """
from tasks import refused

slow = dramatiq.actor(refused, actor_name="slow", min_backoff=100, max_backoff=200)
"""


@pytest.fixture
def folder(valkey, r, tmp_path):
    (blocks,) = [
        blocks
        for title, blocks in pages.sections(pages.read("docs/once.md"))
        if title == pages.TASK_QUEUES
    ]
    for language, code in blocks:
        assert language == "python"
        (name,) = re.findall(r"^# (\w+\.py)", code)
        (tmp_path / name).write_text(code.replace(pages.URL, valkey))
    with (tmp_path / "tasks.py").open("a") as tasks:
        tasks.write(MORE_TASKS.replace("URL", repr(valkey)))
    with (tmp_path / "actors.py").open("a") as actors:
        actors.write(MORE_ACTORS)
    return tmp_path


def start(folder, *words, stdout=None):
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        text=True,
    )


def effects_in(output):
    return Counter(re.findall(r"order \d (?:is charged 5|is done by another|took long)", output))


def test_rq(folder, valkey, r):
    more = "from orders import *; queue.enqueue(tasks.die_once, 3, retry=Retry(max=1))"
    assert start(folder, "-c", more).wait(PATIENCE) == 0
    words = ("-m", "rq.cli", "worker", "--burst", "--url", valkey, "orders")
    workers = [start(folder, *words, stdout=subprocess.PIPE) for _ in range(2)]
    output = "".join(worker.communicate(timeout=PATIENCE)[0] for worker in workers)
    assert [worker.returncode for worker in workers] == [0, 0]
    assert effects_in(output) == {
        "order 1 is charged 5": 1,
        "order 2 is charged 5": 1,
        "order 3 is done by another": 1,
    }, output
    assert r.exists("died")


def test_dramatiq(folder, r):
    send = "from actors import *; [pay.send(n, amount=5) for n in (1, 2, 1)]"
    assert start(folder, "-c", f"{send}; slow.send(4); slow.send(4)").wait(PATIENCE) == 0
    words = ("-m", "dramatiq", "actors", "--processes", "1", "--threads", "4")
    with (folder / "output").open("w+") as output:
        worker = start(folder, *words, stdout=output)
        try:
            wait_until(lambda: not any(r.hlen(key) for key in r.keys("dramatiq:*.msgs")), PATIENCE)
        finally:
            worker.terminate()
            worker.wait(PATIENCE)
        output.seek(0)
        text = output.read()
    assert effects_in(text) == {
        "order 1 is charged 5": 1,
        "order 2 is charged 5": 1,
        "order 4 took long": 1,
    }, text
    assert "InProgress" in text
