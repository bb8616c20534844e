"""Every public operation on a server that fails: the error, its chain and its traceback."""

from __future__ import annotations

import asyncio
import inspect
import io
import socket
import tempfile
import time
import traceback
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import redis
import redis.asyncio
from private import PrivateServer
from proxy import Proxy
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

import bloomlock
from bloomlock import catalog
from bloomlock.errors import BloomlockError
from bloomlock.locks.protocol import waiting

OURS = str(Path(bloomlock.__file__).parent)
MOST_LINKS, MOST_FRAMES = 2, 5
"""A traceback shows three lines of a frame."""
SILENCE = 0.01
"""What clients wait for a reply when the server has failed."""
LONG = 60.0

ITEMS = [str(number) for number in range(30)]
ARGUMENTS = {
    "acquire": (True, 0.01),
    "add": ("a",),
    "add_each": (ITEMS,),
    "add_many": (ITEMS,),
    "async_delete_filter": ("x",),
    "claim": ("b",),
    "claim_many": (["b", "c"],),
    "copy": ("y",),
    "delete_filter": ("x",),
    "discard": ("a",),
    "discard_many": (["a", "b"],),
    "drop_failed": (["a"],),
    "exists": ("a",),
    "exists_many": (ITEMS,),
    "expire": (60,),
    "expire_at": (time.time() + 3600,),
    "open": ("x",),
    "rebuild": (["a"], 2000),
    "rename": ("y",),
    "retry_failed": (["a"],),
    "run_script": ("return add(1)", ["a"]),
    "update": (ITEMS,),
}
"""Of each public operation that needs some; a new one fails here until it has an entry."""
LOCAL = {"check", "close", "owned", "remaining"}
"""What asks no server, or not for a lock that is not held."""
HELD = ("owned", "extend", "reacquire", "release")
FACES = {
    "threads": ("", redis.Redis, Retry),
    "asyncio": ("Async", redis.asyncio.Redis, AsyncRetry),
}
FAILURES = ["dead", "cutting", "refusing", "silent"]


@pytest.fixture(params=FAILURES)
def failing(request, r):
    """A URL behind which the server is, and what puts one there that fails."""
    socket_path = r.connection_pool.connection_kwargs["path"]
    with (
        tempfile.TemporaryDirectory() as directory,
        Proxy(f"unix://{socket_path}", lambda *_: "before") as cutting,
        closing(socket.socket(socket.AF_UNIX)) as silent,
    ):
        path, silent_path = Path(directory, "s"), Path(directory, "silent")
        silent.bind(str(silent_path))
        silent.listen(4096)
        config = {"replicaof": ["127.0.0.1", "1"], "replica-serve-stale-data": "no"}
        with PrivateServer(config=config) as refusing:
            places = {
                "dead": directory + "/none",
                "cutting": cutting.url.removeprefix("unix://"),
                "refusing": refusing.url.partition("?")[0].removeprefix("unix://"),
                "silent": str(silent_path),
            }
            path.symlink_to(socket_path)

            def fail():
                path.unlink()
                path.symlink_to(places[request.param])
                r.client_kill_filter(_type="normal", skipme=True)

            yield f"unix://{path}", fail


async def result_of(value):
    """Await what is to be awaited, and take all that an iterator gives."""
    if inspect.isawaitable(value):
        value = await value
    if hasattr(value, "__aiter__"):
        return [one async for one in value]
    return list(value) if inspect.isgenerator(value) else value


def shown_of(error):
    shown = []
    while error is not None:
        shown.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return shown


def is_ours(frame):
    return frame.f_code.co_filename.startswith(OURS)


def has_circle(error, above=()):
    links = [link for link in (error.__cause__, error.__context__) if link is not None]
    return error in above or any(has_circle(link, (*above, error)) for link in links)


async def fails_plainly(who, call, *arguments, **options):
    try:
        await result_of(call(*arguments, **options))
    except (redis.RedisError, BloomlockError) as error:
        assert not has_circle(error), who
        shown = shown_of(error)
        frames = [frame for one in shown for frame, _ in traceback.walk_tb(one.__traceback__)]
        assert len(shown) - 1 <= MOST_LINKS, who
        assert sum(map(is_ours, frames)) <= MOST_FRAMES, who
    else:
        pytest.fail(f"{who} raises nothing")


def operations(made):
    return [
        (name, getattr(made, name))
        for name, _ in inspect.getmembers(type(made), callable)
        if name[0] != "_" and name not in LOCAL
    ]


def functions(kind):
    return [
        (name, getattr(catalog, name))
        for name in catalog.__all__
        if inspect.isfunction(getattr(catalog, name)) and name.startswith("async_") == bool(kind)
    ]


async def make_all(kind, client, failure):
    """Return the objects of all public classes that ask a server, by what to call them."""
    make = partial(getattr(bloomlock, f"{kind}BloomFilter"), capacity=1000, client=client)
    strategies = ["lua", "transaction", "pipeline"] if failure != "silent" else []
    made = {each: make(each, strategy=each) for each in strategies}
    made["lock"] = make("lock", strategy=bloomlock.LockStrategy(timeout=SILENCE))
    made["shards"] = make("x", shards=3, near_cache=10)
    if failure != "silent":
        made["window"] = make("window", window=60, on_lost="recreate")
    for each in made.values():
        await result_of(each)
    await result_of(made["shards"].add("a"))
    await result_of(made["shards"].discard("a"))
    for name in ("Lock", "FairLock", "ReentrantLock"):
        made[name] = getattr(bloomlock, f"{kind}{name}")(name, client)
    both = getattr(bloomlock, f"{kind}ReadWriteLock")("both", client)
    made["read"], made["write"] = both.read, both.write
    made["Redlock"] = getattr(bloomlock, f"{kind}Redlock")("several", [client], longest_ttl=0)
    return made


async def make_claims(made):
    names = [name for name, _ in operations(await result_of(made.claim("first")))]
    return {name: await result_of(made.claim(name)) for name in names}


@pytest.mark.parametrize("face", FACES)
def test_every_operation_fails_plainly(failing, face, request, monkeypatch):
    url, fail = failing
    kind, client_class, retry = FACES[face]
    monkeypatch.setattr("bloomlock.commands.RETRY_PAUSES", (0.0, 0.0))
    monkeypatch.setattr(waiting, "GRACE_SECONDS", SILENCE)

    async def run():
        client = client_class.from_url(url, socket_timeout=LONG, retry=retry(NoBackoff(), 0))
        made = await make_all(kind, client, request.node.callspec.params["failing"])
        done, held = made["shards"], getattr(bloomlock, f"{kind}Lock")("held", client)
        await result_of(held.acquire())
        claims = await make_claims(done)
        more = {
            "abandon_many": ([claims["abandon"]],),
            "commit_many": ([claims["commit"]],),
            "copy_to": (client, "y"),
            "export_file": (io.BytesIO(),),
            "import_file": ("y", io.BytesIO()),
            "union_update": (done,),
        }
        for each in made.values():
            await result_of(each.close())
        await result_of(client.connection_pool.disconnect())
        client.connection_pool.connection_kwargs["socket_timeout"] = SILENCE
        client.connection_pool.reset()
        fail()
        calls = [(who, *one) for who, each in made.items() for one in operations(each)]
        calls += [("held", name, getattr(held, name)) for name in HELD]
        calls += [("claim", name, dict(operations(each))[name]) for name, each in claims.items()]
        for who, name, call in calls:
            options = {"client": client} if name in ("open", "import_file") else {}
            arguments = () if who == "claim" else more.get(name, ARGUMENTS.get(name, ()))
            await fails_plainly(f"{who}.{name}", call, *arguments, **options)
        for name, call in functions(kind):
            await fails_plainly(name, call, *ARGUMENTS.get(name, ()), client=client)
        for call in () if kind else (lambda: "a" in done, lambda: len(done)):
            await fails_plainly("operator", call)

    asyncio.run(run())
