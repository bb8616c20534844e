from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bloomlock import server
from bloomlock.errors import ServerError
from bloomlock.server.embedded import find_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory with a short path that every user may enter."""
    made = Path(tempfile.mkdtemp(prefix="bl-", dir="/tmp")).resolve()
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def use_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Path]]:
    """Move the embedded server to another directory; the server there is ended afterwards."""
    used: list[Path] = []

    def use(path: Path) -> Path:
        monkeypatch.setenv("BLOOMLOCK_HOME", str(path))
        used.append(path)
        return path

    yield use
    for path in used:
        monkeypatch.setenv("BLOOMLOCK_HOME", str(path))
        with contextlib.suppress(ServerError):  # a directory that no socket fits in
            end_by_force()


@pytest.fixture
def home(base: Path, use_home: Callable[[Path], Path]) -> Path:
    """A data directory of this test's own, not yet there."""
    return use_home(base / "home")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for a server that is well than a busy machine keeps it waiting."""
    monkeypatch.setattr("bloomlock.server.embedded._STATUS_TIMEOUT", 30.0)
    monkeypatch.setattr("bloomlock.server.embedded._PING_TIMEOUT", 10.0)
    monkeypatch.setattr("bloomlock.server.embedded._HANG_TIMEOUT", 60.0)


def end_by_force() -> None:
    """End it by the pid that it wrote down, not by the code under test."""
    at = find_home()
    pid = at.pid()
    if pid is not None and at.is_alive():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def pid() -> Callable[[], int]:
    def ask() -> int:
        info = server.status()
        assert info is not None
        return info["process_id"]

    return ask


@pytest.fixture
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run
