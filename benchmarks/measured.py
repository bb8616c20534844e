"""Runs one command and prints what it took: `python -I -S measured.py OUT COMMAND...`.

A process starts its life with the largest memory of the one that made it. This one is small, so
that what it prints is the command's own. It prints seconds, processor seconds and the largest
resident size in bytes, and imports as little as it can.
"""

import os
import sys
import time


def main() -> None:
    """Run the command to its end, its output going to a file."""
    out, *command = sys.argv[1:]
    opened = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    start = time.monotonic()
    actions = [(os.POSIX_SPAWN_DUP2, opened, 1)]
    process = os.posix_spawnp(command[0], command, os.environ, file_actions=actions)
    _, status, used = os.wait4(process, 0)
    seconds = time.monotonic() - start
    if status:
        sys.exit(os.waitstatus_to_exitcode(status))
    # Linux counts kilobytes, macOS bytes.
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    sys.stdout.write(f"{seconds} {used.ru_utime + used.ru_stime} {peak}\n")


main()
