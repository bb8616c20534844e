from __future__ import annotations

import contextlib
import subprocess
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import COMMAND, CommandForks, Done, environment

from bloomlock import BloomFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A filter name of this test's own."""
    return f"cli-{zlib.crc32(request.node.nodeid.encode()):08x}"


@pytest.fixture(scope="session")
def fork_server() -> Iterator[CommandForks]:
    with CommandForks("cli_fork_server.py", OPENBLAS_NUM_THREADS="1") as server:
        yield server


@pytest.fixture
def run(valkey: str, fork_server: CommandForks) -> Callable[..., Done]:
    """Run a command to its end; its server is the one of BLOOMLOCK_URL."""

    def run(*arguments: str, given: bytes = b"", url: str | None = valkey, **extra: str) -> Done:
        return fork_server.run(list(arguments), given, url, extra)

    return run


@pytest.fixture
def refuse(run: Callable[..., Done]) -> Callable[..., None]:
    """Run a command that ends with one sentence on standard error, and nothing on the other."""

    def refuse(status: int, part: str, *arguments: str, **options: Any) -> None:
        done = run(*arguments, **options)
        message = done.stderr.decode()
        assert (done.returncode, done.stdout) == (status, b""), message
        assert message.startswith("bloomlock: ")
        assert message.endswith("\n")
        assert message.count("\n") == 1
        assert part in message

    return refuse


@pytest.fixture
def start(valkey: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a command with pipes at its three ends; it is killed with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, url: str | None = valkey, **options: Any) -> subprocess.Popen[bytes]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(
            [*COMMAND, *arguments], env=environment(url, {}), **(pipes | options)
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        process.wait()


@pytest.fixture
def marked(valkey: str, name: str) -> Callable[[list[bytes]], set[bytes]]:
    """Tell which of some lines are marked as seen on the server."""

    def marked(lines: list[bytes]) -> set[bytes]:
        with BloomFilter.open(name, client=valkey) as bloom:
            seen = bloom.exists_many(lines)
        return {line for line, is_seen in zip(lines, seen, strict=True) if is_seen}

    return marked
