"""Runs command lines in forks of one process that has everything imported: a fifth of the time.

Started with the number of a socket. A request is a line of JSON, arguments and environment, with
the three standard files attached; its answer is a line with the exit status.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
from functools import partial
from typing import NoReturn

from fork_end import run_to_end

import bloomlock
from bloomlock.cli import COMMANDS, main


def serve(control: socket.socket) -> None:
    """Answer requests until the other end is closed."""
    while True:
        line, files, _, _ = socket.recv_fds(control, 1 << 16, 3)
        while line and not line.endswith(b"\n"):
            line += control.recv(1 << 16)
        if not line:
            return
        child = os.fork()
        if child == 0:
            control.close()
            become(files, **json.loads(line))
        for file in files:
            os.close(file)
        _, status = os.waitpid(child, 0)
        control.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def become(files: list[int], arguments: list[str], environment: dict[str, str]) -> NoReturn:
    """Go on as a process that was started with these."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    run_to_end(partial(main, arguments))


if __name__ == "__main__":
    for place, _ in COMMANDS.values():
        importlib.import_module(f"bloomlock.cli.{place.partition(':')[0]}")
    # The commands import what they use when they are at work.
    for name in bloomlock.__all__:
        getattr(bloomlock, name)
    for module in ("numpy", "scrapy.crawler", "scrapy_ext"):
        importlib.import_module(module)
    # A fork that looked for garbage among these modules would copy their memory.
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
