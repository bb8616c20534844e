"""The task queues of docs/how-to/claims-and-once.md, with real workers: each effect once."""

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
ONCE_EACH = {"mail 1 to Ada": 1, "mail 2 to Ada": 1}


@pytest.fixture
def folder(valkey, r, tmp_path):
    (blocks,) = [
        blocks
        for title, blocks in pages.sections(pages.read("docs/how-to/claims-and-once.md"))
        if title == pages.TASK_QUEUES
    ]
    for _, code in blocks:
        (name,) = re.findall(r"^# (\w+\.py)", code)
        (tmp_path / name).write_text(code.replace(pages.URL, valkey))
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
    return Counter(re.findall(r"mail \d to Ada", output))


def test_rq(folder, valkey):
    assert start(folder, "users.py").wait(PATIENCE) == 0
    words = ("-m", "rq.cli", "worker", "--burst", "--url", valkey, "mails")
    worker = start(folder, *words, stdout=subprocess.PIPE)
    output, _ = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 0
    assert effects_in(output) == ONCE_EACH, output


def test_dramatiq(folder, r):
    send = "from actors import *; [mail.send(n, name='Ada') for n in (1, 2, 1)]"
    assert start(folder, "-c", send).wait(PATIENCE) == 0
    words = ("-m", "dramatiq", "actors", "--processes", "1", "--threads", "1")
    with (folder / "output").open("w+") as output:
        worker = start(folder, *words, stdout=output)
        try:
            wait_until(lambda: not any(r.hlen(key) for key in r.keys("dramatiq:*.msgs")), PATIENCE)
        finally:
            worker.terminate()
            worker.wait(PATIENCE)
        output.seek(0)
        text = output.read()
    assert effects_in(text) == ONCE_EACH, text
