"""The examples as their users start them, and a service whose requests are counted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import servers
from private import PrivateServer, low_port

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 300


class Started:
    """A program of an example, and what it has printed."""

    def __init__(self, words, folder, environment, output):
        self._output = output
        with output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                # All its processes are ended together.
                start_new_session=True,
            )

    @property
    def printed(self):
        return self._output.read_text()

    def finish(self):
        assert self.process.wait(PATIENCE) == 0, self.printed
        return self.printed

    def wait_for(self, condition):
        def is_so():
            assert self.process.poll() is None, self.printed
            return condition()

        return servers.wait_until(is_so, PATIENCE)

    def stop(self):
        """End it as an operator does; what is left after that is killed."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


@pytest.fixture(scope="package")
def valkey():
    """URL of a server that is reached by TCP, as Celery wants it."""
    with PrivateServer(binary=servers.require_server("valkey"), port=low_port()) as server:
        yield f"redis://127.0.0.1:{server.port}/0"


@pytest.fixture
def start(valkey, r, service, tmp_path):
    """Start a program of an example; its packages are there, or the test is skipped."""
    running = []

    def start(package, *words, folder=EXAMPLES):
        servers.require_package(package)
        environment = {"BLOOMLOCK_URL": valkey, "REDIS_URL": valkey, "MAILER": service.url}
        environment["PYSPARK_PYTHON"] = sys.executable
        output = tmp_path / f"output-{len(running)}"
        running.append(Started([str(word) for word in words], folder, environment, output))
        return running[-1]

    yield start
    for started in running:
        started.stop()


@pytest.fixture
def changed(tmp_path):
    """Copy an example with another value in it; returns the folder."""

    def changed(name, old, new):
        text = (EXAMPLES / name).read_text()
        assert text.count(old) == 1
        (tmp_path / name).write_text(text.replace(old, new))
        return tmp_path

    return changed


class Service(ThreadingHTTPServer):
    """Counts POST requests by path; the process that sends one in `deadly` is killed, once."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.done = Counter()
        self.deadly = set()
        self.killed = []


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self):
        if self.path in self.server.deadly:
            self.server.deadly.remove(self.path)
            self.server.killed.append(self._kill_sender())
            return
        self.server.done[self.path] += 1
        self.send_response(204)
        self.end_headers()

    def _kill_sender(self):
        import psutil  # noqa: PLC0415 - few tests need it

        port = self.client_address[1]
        (pid,) = {
            found.pid for found in psutil.net_connections("tcp4") if found.laddr.port == port
        } - {os.getpid()}
        os.kill(pid, signal.SIGKILL)
        return pid

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    with Service() as made:
        thread = Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()
