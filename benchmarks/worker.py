"""One process of one contender: `python -m benchmarks.worker JSON`.

It reads a job from standard input, prepares it and says so; does it at a signal; answers. Each
of these is one line of JSON. So all processes of all contenders stay alive and are run in turn.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from importlib import import_module

from .contenders import make
from .place import Place


def main() -> None:
    """Serve until standard input ends."""
    order = json.loads(sys.argv[1])
    jobs = import_module(f"{__package__}.{order['jobs']}")
    contender = make(order["made_by"], Place(**order["place"]), order["options"])
    gc.freeze()  # so that no collection ever goes through all that was imported
    _say({"ready": True})
    for line in iter(sys.stdin.readline, ""):
        job = jobs.Job(**json.loads(line))
        run = jobs.prepare(contender, job)
        _say({"ready": True})
        if not sys.stdin.readline():
            return
        _say(run())


def _say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # The benchmark may be interrupted while this process is still starting.
    with contextlib.suppress(BrokenPipeError):
        main()
