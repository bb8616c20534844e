"""The end of a process that is a fork of one with many modules."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, NoReturn

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
