"""A small site, and real Scrapy processes that crawl it: `Runner(...).run(...)` is one crawl."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from forks import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import redis
    from forks import Forks

PAGES = 8

PLAIN: dict[str, Any] = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}
FILTER: dict[str, Any] = {"DUPEFILTER_CLASS": "scrapy_ext.BloomDupeFilter"}
ALONE: dict[str, Any] = {
    **FILTER,
    "SPIDER_MIDDLEWARES": {"scrapy_ext.BatchingMiddleware": 10},
}
ADDON: dict[str, Any] = {"ADDONS": {"scrapy_ext.BloomlockAddon": 500}}


@dataclass
class Site:
    """Pages /0 to /7 that all link to all of them, twice.

    With other `links` a page links to the pages that they return for its number. `on_request` is
    called with the number of the request, and may hold its answer back. `answer` returns a status
    for a path, and where it leads.
    """

    url: str = ""
    requested: list[str] = field(default_factory=list)
    on_request: Callable[[int], object] | None = None
    answer: Callable[[str], list[Any]] | None = None
    links: Callable[[int], Iterable[int]] = lambda _: [*range(PAGES), *range(PAGES)]

    @property
    def paths(self) -> list[str]:
        return [f"/{page}" for page in range(PAGES)]

    def respond(self, path: str) -> tuple[int, str, str]:
        links = self.links(int(path[1:].partition("?")[0]))
        status, *location = self.answer(path) if self.answer else [200]
        body = "".join(f'<a href="/{page}">{page}</a>' for page in links)
        return status, "".join(location), body

    @contextlib.contextmanager
    def served(self) -> Any:
        with ThreadingHTTPServer(("127.0.0.1", 0), _handler(self)) as server:
            # Who is killed does not wait for its answer.
            server.handle_error = lambda *_: None  # type: ignore[method-assign]
            self.url = f"http://127.0.0.1:{server.server_port}"
            thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
            thread.start()
            yield self
            server.shutdown()
            thread.join()


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        # A connection serves many pages, and an answer is one packet.
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_GET(self) -> None:
            with lock:
                site.requested.append(self.path)
                count = len(site.requested)
            if site.on_request:
                site.on_request(count)
            status, location, body = site.respond(self.path)
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


@dataclass
class Result:
    """What a crawl did.

    Attributes:
        code: The exit status; that of a killed process is negative.
        fetched: The paths of the pages whose callbacks ran, in order.
    """

    code: int
    log: str
    fetched: list[str] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)

    @property
    def pages(self) -> Counter[str]:
        return Counter(self.fetched)

    @property
    def reason(self) -> str:
        return str(self.stats["finish_reason"])

    def own(self, name: str) -> Any:
        """Return one of our stats; 0 if it is not there."""
        return self.stats.get(f"bloomlock/{name}", 0)

    def lines(self, text: str) -> list[str]:
        """Return the lines of the log that contain a text."""
        return [line for line in self.log.splitlines() if text in line]


class Process:
    """A process that crawls: its id, the end of a pipe for its status, and files of its outputs."""

    def __init__(self, pid: int, status: int, outputs: list[Path]) -> None:
        self.pid = pid
        self._outputs = outputs
        self._code: int | None = None
        self._reader = threading.Thread(target=self._read, args=(status,), daemon=True)
        self._reader.start()

    def _read(self, status: int) -> None:
        with os.fdopen(status) as pipe:
            self._code = int(pipe.readline())

    @property
    def is_running(self) -> bool:
        """Whether it runs, or has just ended."""
        return self._code is None

    def finish(self) -> Result:
        self._reader.join(PATIENCE)
        assert self._code is not None, "the crawl does not end"
        out, log = (output.read_text() for output in self._outputs)
        told = json.loads(out) if out.startswith('{"fetched"') else {}
        return Result(self._code, log, **told)

    def send(self, number: signal.Signals) -> None:
        if self.is_running:
            # It may have ended just now.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> Result:
        self.send(signal.SIGKILL)
        return self.finish()


def end_leases(client: redis.Redis) -> None:
    """Let all leases of crawls be over, as if their time had passed."""
    for key in client.scan_iter(match="*:workers"):
        client.zadd(key, dict.fromkeys(client.zrange(key, 0, -1), 1))


def in_flight(client: redis.Redis, name: str = "spider") -> int:
    """Return how many requests of a crawl processes have taken and not done."""
    return client.hlen(f"{{{name}}}:taken")


class Runner:
    """Runs spiders of tests/support/crawl_process.py, each in a process of its own.

    Args:
        forks: Starts the processes.
        url: The server.
        site: The site; a crawl starts on its page 0.
        folder: For what the processes write; `LinkSpider.note` writes to the file "notes" there.
    """

    def __init__(self, forks: Forks, url: str, site: Site, folder: Path) -> None:
        self.notes = folder / "notes"
        self._folder = folder
        self._forks = forks
        self._url = url
        self._site = site
        self._started: list[Process] = []

    def start(
        self,
        set_up: dict[str, Any] | None = None,
        *,
        spider: str = "LinkSpider",
        name: str = "spider",
        names: tuple[str, ...] = (),
        one_by_one: bool = False,
        arguments: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Process:
        """Start a crawl; `set_up` and the other keyword arguments are settings.

        With several `names` it has a spider for each, all at once or `one_by_one`.
        """
        shared = {
            "REDIS_URL": self._url,
            "BLOOMLOCK_CAPACITY": 1000,
            # A slow machine is no outage.
            "BLOOMLOCK_FILTER": {"timeout": 60},
            "DOWNLOAD_TIMEOUT": 2 * PATIENCE,
            "NOTES": str(self.notes),
        }
        task = {
            "names": names or (name,),
            "one_by_one": one_by_one,
            "spider": spider,
            "start": f"{self._site.url}/0",
            "settings": {**shared, **(ADDON if set_up is None else set_up), **settings},
            "arguments": arguments or {},
        }
        return self._keep(task)

    def run(self, *args: Any, **options: Any) -> Result:
        return self.start(*args, **options).finish()

    def command(self, folder: Path, *words: str, **environment: str) -> Process:
        """Start a command of Scrapy in a folder."""
        return self._keep({"command": words, "folder": str(folder), "environment": environment})

    def _keep(self, task: dict[str, Any]) -> Process:
        number = len(self._started)
        outputs = [self._folder / f"{number}.{name}" for name in ("out", "log")]
        for output in outputs:
            output.touch()
        pid, status = self._forks.start({**task, "outputs": [*map(str, outputs)]}, [])
        self._started.append(Process(pid, status, outputs))
        return self._started[-1]

    def noted(self, what: str) -> Counter[str]:
        """Return the paths that processes have written to `notes`."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        noted = [line.partition(" ") for line in lines]
        return Counter(path for word, _, path in noted if word == what)

    def end(self) -> None:
        for process in self._started:
            process.kill()
