"""How many files of the library one warm call crosses, and how often it moves between them.

    python tests/support/crossing.py

prints both for each call of CALLS, with the files.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import bloomlock
from bloomlock import AsyncBloomFilter, BloomFilter, Lock
from bloomlock.server import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = str(Path(bloomlock.__file__).parent)
WARM_CALLS = 20
GATHERED = 10


class Crossing(NamedTuple):
    """What one call crosses.

    Attributes:
        files: The files in which a function was entered, relative to the package.
        moves: How often the next function entered was in another file.
    """

    files: set[str]
    moves: int


@contextmanager
def crossing(entered: list[str]) -> Iterator[None]:
    """Append the file of each function of the library that is entered or resumed meanwhile."""

    def note(frame: Any, event: str, _argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT):
            entered.append(name[len(ROOT) + 1 :])

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def summed_up(entered: list[str]) -> Crossing:
    """Return what a list of files entered comes to."""
    pairs = itertools.pairwise(entered)
    return Crossing(set(entered), sum(one != other for one, other in pairs))


def of_call(prepare: Callable[[], object], call: Callable[[], object]) -> Crossing:
    """Return the least that a warm call crosses, each of them prepared.

    The least, because a few calls have more to do: one in some seconds looks at its connection.
    """
    found = []
    for _ in range(WARM_CALLS):
        entered: list[str] = []
        prepare()
        with crossing(entered):
            call()
        found.append(summed_up(entered))
    return min(found, key=lambda each: len(each.files))


def add(url: str, strategy: str = "atomic") -> Crossing:
    """Return what `add` of a new item crosses."""
    with BloomFilter(f"crossing-{strategy}", 10_000, 1e-6, client=url, strategy=strategy) as pages:
        numbers = iter(range(1_000_000))
        return of_call(lambda: None, lambda: pages.add(f"page-{next(numbers)}"))


def acquire(url: str) -> Crossing:
    """Return what `Lock.acquire` of a free lock crosses."""
    lock = Lock("crossing", client=url)

    def prepare() -> None:
        if lock.token is not None:
            lock.release()

    try:
        return of_call(prepare, lock.acquire)
    finally:
        lock.release()
        lock.close()


def release(url: str) -> Crossing:
    """Return what `Lock.release` crosses where no client waits."""
    lock = Lock("crossing", client=url)
    try:
        return of_call(lock.acquire, lock.release)
    finally:
        lock.close()


def gathered_adds(url: str) -> Crossing:
    """Return what ten concurrent calls of `AsyncBloomFilter.add` cross."""

    async def main() -> Crossing:
        found = []
        async with AsyncBloomFilter("crossing-asyncio", 10_000, 1e-6, client=url) as pages:
            for number in range(WARM_CALLS):
                entered: list[str] = []
                with crossing(entered):
                    await asyncio.gather(*(pages.add(f"{number}-{i}") for i in range(GATHERED)))
                found.append(summed_up(entered))
        return min(found, key=lambda each: len(each.files))

    return asyncio.run(main())


CALLS: dict[str, Callable[[str], Crossing]] = {
    "add": add,
    "Lock.acquire": acquire,
    "Lock.release": release,
    "add, strategy lock": lambda url: add(url, "lock"),
    "ten gathered adds": gathered_adds,
}


def main() -> None:
    """Print the crossings."""
    with PrivateServer() as server:
        for name, call in CALLS.items():
            files, moves = call(server.url)
            print(f"{name}: {len(files)} files, {moves} moves: {' '.join(sorted(files))}")


if __name__ == "__main__":
    main()
