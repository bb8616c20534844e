"""What one process and the server say to each other about the queue of a crawl."""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapy import Request

Mode = Literal["n", "a", "r", "s", "l", "d", "f"]
_NO_PRIORITY = 2**31
_PARTS = ("queue", "hosts", "later", "taken", "workers", "steps", "failed", "started")


class Push(NamedTuple):
    """A request that goes to the server.

    Attributes:
        request: The request.
        fingerprint: The item of the filter.
        mode: What becomes of it, see scripts/crawl_exchange.lua.
        host: Where it waits; of what failed, the error.
        entry: Its form in the queue; empty if it stays in this process.
    """

    request: Request | None
    fingerprint: bytes
    mode: Mode
    host: str
    entry: bytes = b""

    def words(self) -> tuple[bytes, bytes, bytes]:
        if self.mode == "f":
            return b"f", self.host.replace("\0", " ").encode(errors="replace"), self.entry
        mode = self.mode.encode() + (self.fingerprint if self.mode == "s" else b"")
        if self.request is None:
            return mode, b"", b""
        # Hex digits sort as numbers do; the highest priority comes first.
        priority = min(max(_NO_PRIORITY - self.request.priority, 0), 2**32 - 2)
        is_start = int(is_start_request(self.request))
        host = self.host.replace("\0", " ").encode(errors="replace")
        return mode, host + b"\0%08x%d" % (priority, is_start), self.entry


@dataclass(frozen=True, slots=True)
class Step:
    """What a process sends in one step; the same number always says the same.

    Attributes:
        number: Which step of the process it is.
        pushes: Requests for the queue.
        done: Ids of requests that are done.
        failed: Ids of requests that failed, and why.
        wanted: How many requests to take.
        free: How many more each host may have that this process is at.
        is_idle: Whether it has nothing to do.
        stays: Whether it never ends by itself.
        dead: Workers whose processes are dead.
    """

    number: int
    pushes: Sequence[Push] = ()
    done: Sequence[str] = ()
    failed: Sequence[tuple[str, str]] = ()
    wanted: int = 0
    free: Mapping[str, int] = field(default_factory=dict)
    is_idle: bool = False
    stays: bool = False
    dead: Sequence[str] = ()


class Taken(NamedTuple):
    """A request that was taken from the queue."""

    id: str
    host: str
    entry: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a step.

    Attributes:
        state: Of the crawl: "running", "waiting", "ended"; "gone": the server does not have it.
        was_unknown: Whether the server did not know the process: what it had taken was put back.
        waiting: How many requests wait.
        taken: How many requests all processes together have taken and not done.
        failed: How many requests are kept that failed.
        recovered: How many requests dead processes had, that wait again.
        due_s: Seconds until the next host may be asked; None if none waits for that.
        is_full: Whether a host is due of which this process has enough.
        pushed: For each push whether it was wanted; False: it is a duplicate.
        workers: All processes.
        got: What was taken.
    """

    state: str
    was_unknown: bool = False
    waiting: int = 0
    taken: int = 0
    failed: int = 0
    recovered: int = 0
    due_s: float | None = None
    is_full: bool = False
    pushed: Sequence[bool] = ()
    workers: Sequence[str] = ()
    got: Sequence[Taken] = ()

    @classmethod
    def of(cls, reply: Sequence[Any]) -> Answer:
        state = text_of(reply[0])
        if state == "gone":
            return cls(state)
        was_unknown, waiting, taken, failed, recovered, due_ms, is_full, flags, workers, *got = (
            reply[1:]
        )
        return cls(
            state,
            bool(was_unknown),
            waiting,
            taken,
            failed,
            recovered,
            None if due_ms < 0 else due_ms / 1000,
            bool(is_full),
            [flag == ord("1") for flag in flags],
            json.loads(workers) or [],
            [
                Taken(text_of(identity), *_split(member))
                for identity, member in zip(got[::2], got[1::2], strict=True)
            ],
        )


def is_start_request(request: Request) -> bool:
    """Return whether it is a start request that was not fetched, nor made from one."""
    meta = request.meta
    again = ("bloomlock_begun", "retry_times", "redirect_times", "depth")
    return bool(meta.get("is_start_request")) and not any(map(meta.get, again))


def keys_of(name: str) -> list[str]:
    """Return all keys of a crawl, in the slot of its filter."""
    tag = name
    for character, code in {"%": "%25", "{": "%7B", "}": "%7D", "/": "%2F"}.items():
        tag = tag.replace(character, code)
    return [f"{{{tag}}}:{part}" for part in ("crawl", *_PARTS)]


@cache
def script(name: str) -> str:
    folder = files("scrapy_ext") / "scripts"
    parts = ("crawl_common", f"crawl_{name}")
    return "".join((folder / f"{part}.lua").read_text("utf-8") for part in parts)


def text_of(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def entry_of(member: bytes) -> bytes:
    return _split(member)[1]


def priority_of(member: bytes) -> int:
    """Return the priority of a member of the queue, as Scrapy counts it."""
    return _NO_PRIORITY - int(member.partition(b"\0")[2][:8], 16)


def _split(member: bytes) -> tuple[str, bytes]:
    host, _, rest = member.partition(b"\0")
    return host.decode(), rest.partition(b"\0")[2]


def new_worker() -> str:
    """Return a name of this process that tells others on this host when it is dead."""
    return f"{_place()}/{os.getpid()}/{_started(os.getpid())}/{secrets.token_hex(4)}"


def dead_among(workers: Iterable[str]) -> list[str]:
    """Return the workers that are known to be dead: processes of this host that are gone."""
    dead = []
    for worker in workers:
        place, pid, started, _ = worker.rsplit("/", 3)
        if place == _place() and started and _started(int(pid)) != started:
            dead.append(worker)
    return dead


@cache
def _place() -> str:
    """Return where this process runs: in another place the same number is another process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")[:8]
        # Of containers with the same name each has processes of its own.
        space = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()}/{boot}/{space}"


def _started(pid: int) -> str:
    """Return when a process started; empty if there is none, or the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
