"""What one process and the server say to each other about the queue of a crawl."""

from __future__ import annotations

import json
import os
import secrets
import socket
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scrapy import Request

Mode = Literal["n", "a", "r", "l", "f"]
"""What becomes of a push, see scripts/crawl_exchange.lua."""
_NO_PRIORITY = 2**31
_PARTS = ("crawl", "queue", "hosts", "later", "taken", "workers", "steps", "failed")
_ESCAPES = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D", "/": "%2F"})


class Push(NamedTuple):
    """A request that goes to the server. Of what failed `host` is the error.

    `entry` is its form in the queue, empty if the request stays in this process.
    """

    request: Request | None
    fingerprint: bytes
    mode: Mode
    host: str
    entry: bytes = b""

    def words(self) -> tuple[bytes, bytes, bytes]:
        head = self.host.replace("\0", " ").encode(errors="replace")
        if self.request is not None:
            # Hex digits sort as numbers do; the highest priority comes first.
            priority = min(max(_NO_PRIORITY - self.request.priority, 0), 2**32 - 2)
            head += b"\0%08x%d" % (priority, is_start_request(self.request))
        return self.mode.encode(), head, self.entry


class Answer(NamedTuple):
    """What came of a step, see scripts/crawl_exchange.lua; `got`: id and member of what was taken.

    `pushed` says for each push whether it was wanted; False: it is a duplicate.
    """

    state: str
    was_unknown: bool = False
    waiting: int = 0
    taken: int = 0
    failed: int = 0
    recovered: int = 0
    due_s: float | None = None
    is_full: bool = False
    workers: Sequence[str] = ()
    pushed: Sequence[bool] = ()
    got: Sequence[tuple[str, bytes]] = ()

    @classmethod
    def of(cls, told: bytes, members: Sequence[bytes]) -> Answer:
        fields = json.loads(told)
        got = [*zip(fields.pop("ids", ()), members, strict=True)]
        pushed = [flag == "1" for flag in fields.pop("pushed", ())]
        return cls(**fields, pushed=pushed, got=got)


def is_start_request(request: Request) -> bool:
    """Return whether it is a start request that was not fetched, nor made from one."""
    return bool(request.meta.get("is_start_request") and "bloomlock_begun" not in request.meta)


def keys_of(name: str) -> list[str]:
    """Return all keys of a crawl, in the slot of its filter; see scripts/crawl_common.lua."""
    return [f"{{{name.translate(_ESCAPES)}}}:{part}" for part in _PARTS]


@cache
def script(name: str) -> str:
    folder = files("scrapy_ext") / "scripts"
    parts = ("crawl_common", f"crawl_{name}")
    return "".join((folder / f"{part}.lua").read_text("utf-8") for part in parts)


# A member of the queue is a host, NUL, its rank, NUL, an entry.


def host_of(member: bytes) -> str:
    return member.split(b"\0", 1)[0].decode()


def entry_of(member: bytes) -> bytes:
    return member.split(b"\0", 2)[2]


def priority_of(member: bytes) -> int:
    """Return the priority of a member of the queue, as Scrapy counts it."""
    return _NO_PRIORITY - int(member.split(b"\0", 2)[1][:8], 16)


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
    """Return when a process started; empty if it does not run, or the system does not say."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        # One that is dead keeps its number until its parent has waited for it.
        return "" if state in "ZX" else fields[18]
    except (OSError, ValueError, IndexError):
        return ""
