"""Where an interrupted load goes on: one small file for each file that is being loaded.

What it says is always true: every line before its offset was acknowledged by the server as added
to the filter, in the generation it names. It is written after the acknowledgement, so it may be
behind; then some lines are added twice, which changes nothing. It is never ahead, or lines would
be missing for good.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from .failures import Failure, warn

if TYPE_CHECKING:
    from bloomlock import BloomFilter

HOME_VARIABLE = "BLOOMLOCK_HOME"
SECONDS_BETWEEN_WRITES = 1.0
_FORMAT = 1
_WRITABLE_BY_OTHERS = 0o022


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the lines of a file are in a filter for certain.

    Attributes:
        offset: Bytes of the file before which all lines are.
        lines: How many lines that is.
    """

    offset: int = 0
    lines: int = 0


class Journal:
    """The mark of one file and one filter, on disk.

    A mark counts only for the same generation of the filter and the same file: device, inode,
    length, time of change, and what ends its lines.

    Args:
        bloom: The filter.
        server: Its server, as the user calls it; not written down, for it may hold a password.
        path: The file.
        delimiter: The byte that ends a line.

    Raises:
        Failure: Others can write into the directory: a mark of theirs would leave out lines.
    """

    def __init__(self, bloom: BloomFilter, server: str, path: str, delimiter: bytes) -> None:
        """Touch nothing yet."""
        absolute = os.path.realpath(path)
        known_by = [server, bloom.name, absolute, delimiter.hex()]
        digest = hashlib.sha256(os.fsencode("\0".join(known_by))).hexdigest()
        folder = _folder()
        for each in (folder.parent, folder):
            _refuse_open(each)
        self._place = folder / f"{digest[:32]}.json"
        self._bloom = bloom
        self._generation = bloom.generation
        self._next_write = 0.0
        self._kept = True
        self._unwritten: Mark | None = None
        self._identity: dict[str, int] = {}

    def begin(self, found: os.stat_result) -> Mark:
        """Return the mark for a file that is now as `found`; the start if there is none."""
        self._identity = {
            "format": _FORMAT,
            "generation": self._generation,
            "device": found.st_dev,
            "inode": found.st_ino,
            "size": found.st_size,
            "changed": found.st_mtime_ns,
        }
        try:
            stored = json.loads(self._place.read_bytes())
            mark = Mark(**stored.pop("mark"))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return Mark()
        usable = type(mark.offset) is int and type(mark.lines) is int
        if not usable or stored != self._identity or not 0 <= mark.offset <= found.st_size:
            return Mark()
        return mark

    @property
    def exists(self) -> bool:
        """Whether there is a mark on disk, of whatever generation and file."""
        return self._place.exists()

    def advance(self, mark: Mark) -> None:
        """Note that all lines before the mark were acknowledged; on disk within about a second."""
        self._unwritten = mark
        if time.monotonic() >= self._next_write:
            self.flush()

    def flush(self) -> None:
        """Write down what was noted.

        Somebody may have cleared the filter meanwhile: what was acknowledged before is not in it
        then, and nothing is written any more.
        """
        mark, self._unwritten = self._unwritten, None
        if self._kept and self._bloom.generation != self._generation:
            self._kept = False
            self.remove()
        if mark is None or not self._kept:
            return
        try:
            self._write({**self._identity, "mark": asdict(mark)})
        except OSError as error:
            self._kept = False
            warn(
                f"where the load is cannot be written down in {self._place.parent}: "
                f"{error.strerror}; if it is interrupted it has to start over"
            )
        self._next_write = time.monotonic() + SECONDS_BETWEEN_WRITES

    def remove(self) -> None:
        """Forget the mark."""
        self._unwritten = None
        try:
            self._place.unlink(missing_ok=True)
        except OSError:
            self._kept = False  # it stays behind, and is as true as it was

    def _write(self, content: dict[str, Any]) -> None:
        # Others have no business in it, nor in the server's directory where this makes it.
        self._place.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._place.parent.mkdir(mode=0o700, exist_ok=True)
        beside = self._place.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(content), "ascii")
        beside.replace(self._place)


def _refuse_open(path: Path) -> None:
    try:
        found = path.stat()
    except OSError:
        return  # it is made, or the first mark says why it cannot be
    if found.st_uid != os.geteuid() or found.st_mode & _WRITABLE_BY_OTHERS:
        raise Failure(
            f"{path} belongs to another user or can be written by others (mode "
            f"{stat.S_IMODE(found.st_mode):04o}), so what it says is not believed; chmod it to "
            f"0700, or set {HOME_VARIABLE} to another directory"
        )


def _folder() -> Path:
    home = os.environ.get(HOME_VARIABLE)
    state = platformdirs.user_state_dir("bloomlock", appauthor=False)
    return Path(home or state).expanduser() / "loads"
