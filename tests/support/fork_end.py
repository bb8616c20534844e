"""A process with many modules that forks for each request, and the end of such a fork."""

from __future__ import annotations

import atexit
import gc
import json
import os
import socket
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

FLUSH_FAILED = 120
"""The exit status of Python where what was written last cannot be."""


def run_to_end(work: Callable[[], object]) -> NoReturn:
    """Call a function that ends by `sys.exit`, and end this process as Python does.

    But for one thing: Python takes all modules apart, and a fork copies their memory for that. It
    takes four fifths of the time of a short command.
    """
    status: object = 0
    try:
        work()
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001 - Python prints any
        traceback.print_exc()
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    # What has a finalizer and is in a cycle; what was there before the fork is frozen.
    gc.collect()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except OSError:
        status = FLUSH_FAILED
    os._exit(status if isinstance(status, int) else 0 if status is None else 1)


def serve(become: Callable[[list[int], dict[str, Any]], NoReturn]) -> None:
    """Answer requests until the other end of the socket, whose number is the argument, is closed.

    A request is a line of JSON, with files and the end of a pipe for the exit status. A fork goes
    on as what they say, and its id is the answer.
    """
    # A fork that looked for garbage among these modules would copy their memory.
    gc.freeze()
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        line, files, _, _ = socket.recv_fds(control, 1 << 16, 4)
        while line and not line.endswith(b"\n"):
            line += control.recv(1 << 16)
        if not line:
            return
        *files, status = files
        child = os.fork()
        if child == 0:
            control.close()
            os.close(status)
            become(files, json.loads(line))
        for file in files:
            os.close(file)
        threading.Thread(target=_await_end, args=(child, status)).start()
        control.sendall(b"%d\n" % child)


def _await_end(child: int, status: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(status, b"%d\n" % code)
    os.close(status)
