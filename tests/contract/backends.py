"""What the contracts run on: how each backend makes a filter, and which features it refuses."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import redis
import redis.asyncio
from flat_options import given

from bloomlock import AsyncBloomFilter, BloomFilter, MemoryBloomFilter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack

DAY = 86_400
WINDOW = {"capacity": 50_000, "window": 6 * DAY, "slices": 6}
GROWTH = {"capacity": 20, "on_full": "grow"}
NOT_OF_OPEN = {
    "capacity", "error_rate", "shards", "window", "slices", "num_hashes", "seeds", "growth",
    "up_to", "optimize",
}  # fmt: skip
"""Options of creation that are stored; `open` reads them."""
PATIENCE = 120
"""Seconds that a client waits for a reply; no test waits for that to end."""
END = object()


@dataclass(frozen=True)
class Backend:
    """How a filter is made.

    Attributes:
        options: Of the class.
        server: A kind of support/servers.py, "bloom" for one with BF.*, "cluster" or "memory".
        is_async: Whether its objects are of asyncio.
        discards: Whether an item is discarded of each filter before a test has it.
    """

    options: dict[str, Any]
    server: str = "valkey"
    is_async: bool = False
    discards: bool = False

    @property
    def strategy(self) -> str:
        return self.options.get("strategy", "atomic")

    @property
    def plain_strategy(self) -> str:
        """The strategy of a client that does what others see."""
        return "native" if self.strategy == "native" else "atomic"


FILTERS = {
    "atomic": Backend({"strategy": "atomic"}),
    "lua": Backend({"strategy": "lua", "shards": 3}),
    "transaction": Backend({"strategy": "transaction"}),
    "pipeline": Backend({"strategy": "pipeline"}),
    "lock": Backend({"strategy": "lock"}),
    "native": Backend({"strategy": "native"}, server="bloom"),
    "window": Backend(WINDOW),
    "growth": Backend(GROWTH),
    "discards": Backend({"shards": 3}, discards=True),
    "memory": Backend({}, server="memory"),
    "asyncio": Backend({}, is_async=True),
    "cluster": Backend({"shards": 3}, server="cluster"),
    "oldest": Backend({}, server="redis62"),
    "newest": Backend({}, server="redis82"),
}

NOT_TESTED = None
"""In place of a sentence: it may work today, and nothing promises that."""
_SAME_CHANGES = {"changes": NOT_TESTED}
"""The whole filter is created, cleared and copied by the same steps as with strategy atomic."""
_SCRIPTED = "strategy must be 'atomic' or 'lua' for"
_UNIONS = ("to_memory", "from memory", "union")
_EXTRAS = dict.fromkeys(
    (*_UNIONS, "discard", "rebuild", "claims", "run_script", "route"), _SCRIPTED
)
"""What the extras of a filter need is a script."""
_NO_BITS = dict.fromkeys((*_UNIONS, "rebuild", "route"), "not possible with")
_WINDOW = _NO_BITS | {
    "growth": "window must be None with on_full='grow'",
    "raise": "on_full must be 'warn' with window=",
    "warn": NOT_TESTED,
    **_SAME_CHANGES,
    # Before the bits it asks for the time.
    "three tries": NOT_TESTED,
}  # fmt: skip
_NO_PROXY = dict.fromkeys(("proxy", "clock", "read-only"), NOT_TESTED)

REFUSES: dict[str, dict[str, str | None]] = {
    "lua": _SAME_CHANGES,
    "transaction": {
        **_SAME_CHANGES,
        **_EXTRAS,
        "window": "strategy must be 'atomic' or 'lua'.*not 'transaction'",
        "growth": "strategy must be 'atomic' or 'lua'.*not 'transaction'",
    },
    "pipeline": {
        **_SAME_CHANGES,
        **_EXTRAS,
        "one winner": NOT_TESTED,
        "window": "strategy must be 'atomic' or 'lua'.*not 'pipeline'",
        "growth": "strategy must be 'atomic' or 'lua'.*not 'pipeline'",
    },
    "lock": {
        **_SAME_CHANGES,
        # A lock is waited for until the server has its data, or another one is the master.
        **dict.fromkeys(("loading", "read-only"), NOT_TESTED),
        **_EXTRAS,
        "window": "strategy must be 'atomic' or 'lua'.*not 'lock'",
        "growth": "strategy must be 'atomic' or 'lua'.*not 'lock'",
    },
    "native": {
        "lost changes": NOT_TESTED,
        **_EXTRAS,
        **dict.fromkeys(("export", "copy", "copy_to"), "strategy must be .* for .*, not 'native'"),
        "window": "strategy must be 'atomic' or 'lua'.*not 'native'",
        "growth": "on_full must be 'warn' or 'raise' with strategy='native'",
        "key": "key must be None with strategy='native'",
        "seeds": "seeds must be None.*strategy='native'",
        "num_hashes": "num_hashes must be None.*strategy='native'",
    },
    "window": _WINDOW,
    "growth": {
        **_SAME_CHANGES,
        # It may look at its fill first.
        "three tries": NOT_TESTED,
        **dict.fromkeys(_UNIONS, "not possible with a filter that grows"),
        "route": NOT_TESTED,
        "rebuild": NOT_TESTED,
        "seeds": "seeds must be None with on_full='grow'",
        "window": "window must be None with on_full='grow'",
        "raise": NOT_TESTED,
        "warn": NOT_TESTED,
    },
    "memory": dict.fromkeys(
        (
            "server", "route", "discard", "claims", "run_script", "to_memory", "rebuild", "copy",
            "copy_to", "export", "rename", "expire", "near_cache", "proxy", "clock", "window",
        ),
        NOT_TESTED,
    ) | {
        "growth": "on_full must be 'warn' or 'raise'",
    },
    "asyncio": _SAME_CHANGES,
    "discards": {
        **dict.fromkeys(_UNIONS, "not possible with a filter with discarded items"),
        # Each shard is another command of the same steps.
        "lost changes": NOT_TESTED,
        "three tries": NOT_TESTED,
    },
    # What is lost between client and server does not depend on the version of the server.
    "oldest": {"proxy": NOT_TESTED},
    "newest": {"proxy": NOT_TESTED},
    # A script of items in several slots is no script.
    "cluster": {**_NO_PROXY, "run_script": NOT_TESTED, "rename": NOT_TESTED},
}  # fmt: skip
"""Backend -> feature -> a part of the sentence that refuses it, or NOT_TESTED.

A feature that is not named here works, and the tests that need it are run.
"""

ATTEMPTS: dict[str, Any] = {
    "route": lambda place: place.make().add_many(["a"], route="bitmap"),
    "discard": lambda place: place.make().discard("a"),
    "claims": lambda place: place.make().claim("a"),
    "run_script": lambda place: place.make().run_script("return 1"),
    "to_memory": lambda place: place.make().to_memory(),
    "from memory": lambda place: place.make().update(MemoryBloomFilter(2000)),
    "union": lambda place: place.make().update(place.other()),
    "copy": lambda place: place.make().copy("y"),
    "rebuild": lambda place: place.make().rebuild(["a"], capacity=9000),
    "copy_to": lambda place: place.make().copy_to(place.address, "copied"),
    "export": lambda place: place.make().export_file("never-written"),
    "window": lambda place: place.make("y", window=60),
    "growth": lambda place: place.make("y", on_full="grow"),
    "raise": lambda place: place.make("y", on_full="raise"),
    "key": lambda place: place.make("y", key=True),
    "seeds": lambda place: place.make("y", seeds=[1, 2, 3]),
    "num_hashes": lambda place: place.make("y", num_hashes=5),
}
"""How each feature that a backend refuses is asked for."""


class Place:
    """Where the filters of one test are: a server, and who closes them.

    Args:
        backend: How they are made.
        address: A URL, a client of a cluster, or None for the memory of the process.
        stack: Closes what is made.

    Attributes:
        r: A client of the server.
    """

    def __init__(self, backend: Backend, address: Any, stack: ExitStack) -> None:
        self.backend, self.address, self._stack = backend, address, stack
        self.r: Any = address
        if isinstance(address, str):
            self.r = stack.enter_context(redis.Redis.from_url(address))
        self._runner = stack.enter_context(asyncio.Runner()) if backend.is_async else None

    def make(self, name: str = "x", *, at: Any = None, **options: Any) -> Any:
        """Create a filter of the backend, or attach to it; `at` is another address."""
        options = {"capacity": 2000, "error_rate": 1e-6} | self.backend.options | options
        if self.backend.server == "memory":
            return MemoryBloomFilter(**options)
        kind = AsyncBloomFilter if self._runner else BloomFilter
        discards = self.backend.discards and not self.r.exists(f"bloomlock:{{{name}}}:meta")
        made = self._begin(kind, name, at, options)
        if discards:
            made.add("discarded at first")
            made.discard("discarded at first")
        return made

    def open(self, name: str = "x", *, at: Any = None, **options: Any) -> Any:
        """Attach to a filter that is there, by an object of the backend."""
        given = self.backend.options
        options = {key: given[key] for key in given.keys() - NOT_OF_OPEN} | options
        if options.get("on_full") == "grow":
            del options["on_full"]
        kind = AsyncBloomFilter.open if self._runner else BloomFilter.open
        return self._begin(kind, name, at, options)

    def other(self, name: str = "x", **options: Any) -> BloomFilter:
        """Attach another client to a filter: one of threads, straight to the server."""
        options = {"strategy": self.backend.plain_strategy} | options
        made = BloomFilter.open(name, client=self.r, **options)
        self._stack.callback(made.close)
        return made

    def _begin(self, kind: Any, name: str, at: Any, options: dict[str, Any]) -> Any:
        at = at or self.address
        if self._runner is None:
            # With redis-py's own retries, as users have it.
            if isinstance(at, str):
                client = redis.Redis.from_url(at, socket_timeout=PATIENCE)
                at = self._stack.enter_context(client)
            made = kind(name, client=at, **given(options))
            self._stack.callback(made.close)
            return made
        runner = self._runner

        async def begin() -> Any:
            client = redis.asyncio.Redis.from_url(at, socket_timeout=PATIENCE)
            self._stack.callback(lambda: runner.run(client.aclose()))
            return await kind(name, client=client, **given(options))

        made = Awaited(runner, runner.run(begin()))
        self._stack.callback(made.close)
        return made

    def configure(self, name: str, value: object) -> None:
        """Set a parameter of the server, or of all masters of a cluster."""
        cluster = self.backend.server == "cluster"
        more = {"target_nodes": self.r.get_primaries()} if cluster else {}
        self.r.config_set(name, value, **more)

    def drop_locks(self) -> None:
        """End the locks of a strategy whose client was cut off, in place of their lease."""
        for key in self.r.keys("*:lock:*"):
            self.r.delete(key)

    def contents(self) -> dict[bytes, bytes]:
        return {key: self.r.dump(key) for key in self.r.scan_iter()}


class Awaited:
    """An object of asyncio whose methods are called as those of its twin for threads."""

    def __init__(self, runner: asyncio.Runner, made: Any) -> None:
        self._runner, self._made = runner, made

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._made, name)
        if not callable(value):
            return value
        return lambda *args, **options: self._call(value, args, options)

    def _call(self, method: Any, args: Any, options: Any) -> Any:
        async def wait() -> Any:
            result = method(*args, **options)
            return await result if inspect.isawaitable(result) else result

        return self._wrapped(self._runner.run(wait()))

    def _wrapped(self, result: Any) -> Any:
        if isinstance(result, list):
            return [self._wrapped(each) for each in result]
        if hasattr(result, "__anext__"):
            return self._each(result)
        own = hasattr(result, "__aenter__")
        return Awaited(self._runner, result) if own else result

    def _each(self, stream: Any) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(stream, END)

        while (one := self._runner.run(following())) is not END:
            yield self._wrapped(one)

    def together(self, name: str, items: list[Any]) -> list[Any]:
        """Call a method for each item at once, and return the answers or errors."""

        async def gather() -> Any:
            calls = (getattr(self._made, name)(item) for item in items)
            return await asyncio.gather(*calls, return_exceptions=True)

        return self._runner.run(gather())

    def __contains__(self, item: Any) -> bool:
        return self.exists(item)

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return bool(self._made)

    def __enter__(self) -> Self:
        return self._wrapped(self._call(self._made.__aenter__, (), {})) and self

    def __exit__(self, *error: object) -> Any:
        return self._call(self._made.__aexit__, error, {})
