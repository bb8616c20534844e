"""Starting and ending the process of the embedded server."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from bloomlock.errors import ServerError
from bloomlock.server import life
from bloomlock.server.binary import valkey_binary
from bloomlock.server.paths import WAY_OUT
from bloomlock.server.probe import log_size, log_tail, quote_lines
from bloomlock.server.trouble import died

if TYPE_CHECKING:
    from bloomlock.server.paths import Home

_LOG_LIMIT = 1 << 20


def spawn(home: Home, life_fd: int, deadline: float) -> int:
    """Start the server in the background, as a child of nobody.

    Args:
        home: Where it lives.
        life_fd: The descriptor of its life lock, which it keeps.
        deadline: When to give up (`time.monotonic`).

    Returns:
        The size of the log before, that is where the new server's words begin.

    Raises:
        ServerError: The program cannot be run or refuses its arguments.
    """
    home.pid_file.unlink(missing_ok=True)
    if log_size(home.log_file) > _LOG_LIMIT:
        home.log_file.replace(home.log_file.with_suffix(".log.1"))
    log_start = log_size(home.log_file)
    binary = valkey_binary()
    try:
        # Its own session, and detached by itself (daemonize): no Ctrl-C of the starter reaches
        # it, it is nobody's zombie, and the starter has no child it did not ask for.
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
        said = quote_lines(done.stdout.decode(errors="replace"))
        raise died(home, said or log_tail(home.log_file, log_start))
    return log_start


def end(home: Home, deadline: float) -> None:
    """End a server that cannot be asked to go: a signal, and soon a stronger one.

    Args:
        home: Where it lives; its life lock has to be held, which vouches for the pid file.
        deadline: When to give up (`time.monotonic`); half of the time goes to the mild signal.

    Raises:
        ServerError: It still lives.
    """
    pid = home.pid()
    half = (time.monotonic() + deadline) / 2
    for number, until in ((signal.SIGTERM, half), (signal.SIGKILL, deadline)):
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if life.wait_free(home.life_file, until):
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
