"""A process that has everything imported and forks workers: a worker is there within 10 ms."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from lock_chaos.worker import Config

TESTS = Path(__file__).parents[1]
PATIENCE = 60.0


class ForkServer:
    """Starts worker processes, and buries them: until then their process ids stay theirs."""

    def __enter__(self) -> Self:
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lock_chaos.forks", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
        )
        theirs.close()
        ours.settimeout(PATIENCE)
        self._control = ours
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._process.wait(PATIENCE)

    def fork(self, config: Config) -> tuple[int, socket.socket]:
        """Start a worker; returns its process id and the socket that tells it what to do."""
        ours, theirs = socket.socketpair()
        with theirs:
            request = json.dumps({"fork": asdict(config)}).encode()
            socket.send_fds(self._control, [request], [theirs.fileno()])
        return int(self._control.recv(100)), ours

    def await_stop(self, pid: int) -> None:
        """Wait for a worker that was sent SIGSTOP."""
        self._ask("await_stop", pid)

    def bury(self, pid: int) -> int:
        """Wait for a worker that ends; returns its exit status."""
        return self._ask("bury", pid)

    def _ask(self, question: str, pid: int) -> int:
        self._control.send(json.dumps({question: pid}).encode())
        return int(self._control.recv(100))


def main(control: socket.socket) -> None:
    """Fork and bury until the other side closes."""
    from lock_chaos import worker  # noqa: PLC0415 - what the workers shall not each import

    while True:
        data, files, _, _ = socket.recv_fds(control, 65536, 1)
        if not data:
            return
        request = json.loads(data)
        if "bury" in request:
            _, status = os.waitpid(request["bury"], 0)
            answer = os.waitstatus_to_exitcode(status)
        elif "await_stop" in request:
            _, status = os.waitpid(request["await_stop"], os.WUNTRACED)
            answer = os.WSTOPSIG(status)
        else:
            answer = os.fork()
            if answer == 0:
                control.close()
                _child(worker.Config(**request["fork"]), socket.socket(fileno=files[0]))
            os.close(files[0])
        control.send(str(answer).encode())


def _child(config: Config, control: socket.socket) -> None:
    from lock_chaos import worker  # noqa: PLC0415 - imported long ago

    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        worker.run(config, control)
        status = 0
    except BaseException:  # noqa: BLE001 - a worker must not go on as a second fork server
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
