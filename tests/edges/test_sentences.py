"""What errors say: which mistake it is, and what to write instead."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import threading
import traceback
from functools import partial
from pathlib import Path

import pytest
import redis
from private import PrivateServer
from redis.backoff import NoBackoff
from redis.retry import Retry
from servers import require_server

import bloomlock
from bloomlock import AsyncBloomFilter, AsyncLock, BloomFilter, Lock, MemoryBloomFilter
from bloomlock.errors import CapacityError
from bloomlock.runtime import clients

OURS = str(Path(bloomlock.__file__).parent)
MOST_FRAMES = 5
WANTED, WRONG = (
    "refuses: it wants a password; write redis",
    "the password or the user name is wrong",
)
NO_KEY = "the server refuses: .*; the ACL of this user must allow the command, and all keys"


async def awaited(made):
    await made.add("a") if hasattr(made, "add") else await made.acquire()


USES = {
    "filter": lambda url: BloomFilter("x", 1000, client=url),
    "lock": lambda url: Lock("x", url).acquire(),
    "asyncio filter": lambda url: asyncio.run(awaited(AsyncBloomFilter("x", 1000, client=url))),
    "asyncio lock": lambda url: asyncio.run(awaited(AsyncLock("x", url))),
}


@pytest.fixture(scope="module", params=["valkey", "redis62"])
def secured(request):
    config = {"requirepass": "secret"}
    with PrivateServer(binary=require_server(request.param), config=config, port=0) as server:
        with redis.Redis.from_url(f"redis://:secret@127.0.0.1:{server.port}") as admin:
            admin.execute_command(*["ACL", "SETUSER", "ann", "on", ">pw", "~other*", "&*", "+@all"])
        yield f"127.0.0.1:{server.port}"


@contextlib.contextmanager
def port_of(answer):
    """The port of what answers that to whatever it is told, and closes; None: it stays silent."""

    def serve():
        with contextlib.suppress(OSError):
            while True:
                with listener.accept()[0] as near:
                    near.recv(1000)
                    near.recv(1000) if answer is None else near.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def fails(says, call, *arguments):
    with pytest.raises(Exception, match=says) as caught:
        call(*arguments)
    entries = traceback.extract_tb(caught.value.__traceback__)
    assert sum(entry.filename.startswith(OURS) for entry in entries) <= MOST_FRAMES, entries


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_server_that_refuses_says_why(secured, use):
    fails(WANTED, use, f"redis://{secured}")
    for login in (":no", "eve:no", "secret"):
        fails(WRONG, use, f"redis://{login}@{secured}")
    fails(NO_KEY, use, f"redis://ann:pw@{secured}")
    fails("refuses: .*DB index", use, f"redis://:secret@{secured}/99")


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_is_no_server_says_what_it_may_be(valkey, use, monkeypatch):
    monkeypatch.setattr(clients, "CONNECT_TIMEOUT", 0.3)
    with port_of(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        fails("what answers there is a web server", use, f"redis://127.0.0.1:{port}")
    for answer in (b"\0\1\2\3", None):
        with port_of(answer) as port:
            fails("no Redis server answers at redis:", use, f"redis://127.0.0.1:{port}")
    with port_of(b"") as port:
        fails("speaks TLS, write rediss://", use, f"redis://127.0.0.1:{port}")
        fails("speaks no TLS, write redis://", use, f"rediss://127.0.0.1:{port}")
    fails("end with the number of a database", use, "redis://localhost/abc")


def test_a_client_of_a_user_is_told_the_same(secured):
    for login, says in (("", WANTED), (":no@", WRONG)):
        with redis.Redis.from_url(
            f"redis://{login}{secured}", retry=Retry(NoBackoff(), 0)
        ) as client:
            fails(says, USES["filter"], client)
            fails(says, USES["lock"], client)


def test_errors_of_filters_name_what_to_do(r):
    made = BloomFilter("x", 100, client=r, on_full="raise")
    fails("open.*rebuild.*delete_filter", lambda: BloomFilter("x", 200, client=r))
    prefix = "named 'none' with prefix 'mine:' at .*sock, database 0"
    fails(prefix, lambda: BloomFilter.open("none", client=r, prefix="mine:"))
    full = 'refuses new ones; rebuild.* on_full="grow"'
    fails(full, lambda: made.add_many(map(str, range(500))))
    for key in r.keys():  # noqa: SIM118 - of the server
        r.delete(key)
        r.lpush(key, "x")
    for call in (made.add, made.exists):
        fails("WRONGTYPE .*; it is 'bloomlock:{x}:bits'", call, "b")
    fails("Lock has no parameter 'tll'", lambda: Lock("x", r, tll=3))


def test_a_filter_that_refuses_does_not_say_that_its_error_rate_rises(r, caplog):
    made = BloomFilter("x", 100, client=r, on_full="raise")
    with pytest.raises(CapacityError):
        made.add_many(map(str, range(500)))
    assert "new items are refused" in caplog.text
    assert "rate" not in caplog.text


class DataFrame:
    """As that of pandas, which gives the names of its columns."""

    columns = ("a",)

    def __iter__(self):
        return iter(self.columns)


FACES = {"server": BloomFilter, "process": MemoryBloomFilter}
TAKE_ITEMS = [
    pytest.param(face, name, id=f"{face} {name}")
    for face, kind in FACES.items()
    for name, method in inspect.getmembers(kind, inspect.isfunction)
    if name[0] != "_" and "items" in inspect.signature(method).parameters
]


@pytest.mark.parametrize(("face", "name"), TAKE_ITEMS)
def test_whatever_takes_items_refuses_one_and_what_has_them_by_keys(r, face, name):
    made = MemoryBloomFilter(100) if face == "process" else BloomFilter("x", 100, client=r)
    call = getattr(made, name)
    if name == "run_script":
        call = partial(call, "return {}")
    for given in ("text", b"text", {"a": 1}, DataFrame()):
        fails(f"not one {type(given).__name__}$", lambda given=given: [*(call(given) or ())])
