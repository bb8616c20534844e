"""Disks that are full, fill up or are closed: real file systems, mounted for one process."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def in_small_file_system(directory: Path, options: str, code: str) -> str:
    """Run Python code where `directory` is a file system of its own; return what it prints."""
    unshare = shutil.which("unshare")
    flags = ["--mount"] if os.geteuid() == 0 else ["--mount", "--map-root-user"]
    if (
        unshare is None
        or subprocess.run([unshare, *flags, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this machine cannot mount a file system for one process")
    script = f'mount -t tmpfs -o {options} tmpfs "$1" && exec "$2" -c "$3"'
    done = subprocess.run(
        [unshare, *flags, "sh", "-c", script, "sh", str(directory), sys.executable, code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FILL = """
import os
from pathlib import Path
from bloomlock import server
from bloomlock.errors import ServerError
home = Path(os.environ["BLOOMLOCK_HOME"])
def fill():
    with open(home.parent / "filler", "ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
"""


def test_a_disk_that_fills_up_while_the_server_starts(base, use_home):
    use_home(base / "home")
    # Room for the log and the locks, none for the data.
    code = f"""{FILL}
server.embedded_url(); server.stop()
import shutil
shutil.rmtree(home / "appendonlydir")
fill()
try:
    server.embedded_url()
except ServerError as error:
    print(error)
print(server.status())
"""
    said = in_small_file_system(base, "size=256k,mode=700", code)
    message, running = said.splitlines()
    assert "ended while it was starting; the disk is full; " in message
    assert "log" in message
    assert running == "None"


def test_a_disk_that_fills_up_while_the_server_runs(base, use_home):
    use_home(base / "home")
    code = f"""{FILL}
import redis, time
client = redis.Redis.from_url(server.embedded_url())
client.set("before", 1)
fill()
for number in range(100):
    try:
        client.set(f"key{{number}}", "x" * 4096)
    except redis.ResponseError as error:
        break
    time.sleep(0.01)
try:
    server.embedded_url()
except ServerError as error:
    print(error)
import contextlib, io
from bloomlock.cli import main
def status():
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            main(["server", "status"])
        except SystemExit as end:
            return end.code, shown.getvalue()
while status()[0] == 0:
    time.sleep(0.01)
print(status())
(home.parent / "filler").unlink()
url = ""
for _ in range(500):
    try:
        url = server.embedded_url()
        break
    except ServerError:
        time.sleep(0.01)
client.set("after", 1)
while status()[0] != 0:
    time.sleep(0.01)
print(client.mget("before", "after"), server.stop())
"""
    message, shown, end = in_small_file_system(base, "size=256k,mode=700", code).splitlines()
    assert "cannot work: MISCONF" in message
    assert "No space left on device" in message
    status, output = ast.literal_eval(shown)
    assert status == 1
    assert output.startswith("running: pid ")
    assert output.splitlines()[1] == (
        f"bloomlock: it refuses all writes: its append-only file in {base}/home cannot be written"
    )
    assert end == "[b'1', b'1'] True"
