"""What is used of redis-py beyond its documentation does on real servers what it is used for.

A version of redis-py that fails here is one that the library does not work with.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import select
import signal
import socket
import threading
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
import servers
from private import PrivateServer
from redis.exceptions import MovedError, ReadOnlyError, ResponseError
from servers import wait_until
from slot_moves import SlotMover

from bloomlock.commands import EXEC, MULTI, encode_command, encode_large, join_commands
from bloomlock.runtime import cluster as cluster_map
from bloomlock.runtime import connections, redispy

LONG = 60.0
PING = encode_command("PING")
LARGE = bytes(range(256)) * 4000
SET = encode_large("SET", "large", memoryview(LARGE))
TRANSACTION = [
    MULTI,
    SET,
    encode_command("GETRANGE", "large", 1, -1),
    encode_command("GET", "large"),
    EXEC,
]
ANSWERS = [b"OK", b"QUEUED", b"QUEUED", b"QUEUED", [b"OK", LARGE[1:], LARGE]]


def face_of(package, prefix):
    def named(module, name):
        return getattr(module, prefix + name)

    return SimpleNamespace(
        client=package.Redis,
        cluster=package.RedisCluster,
        sentinel=package.sentinel.Sentinel,
        kind=package.UnixDomainSocketConnection,
        get=named(connections, "get_connection"),
        release=named(connections, "release"),
        reader=named(redispy, "reply_reader"),
        send=named(redispy, "send"),
        close=named(redispy, "close_quietly"),
        is_open=named(redispy, "is_open"),
        source_of_key=cluster_map.source_of_key,
        source_of_address=cluster_map.source_of_address,
        note_moved=named(cluster_map, "note_moved"),
    )


THREADS, ASYNCIO = face_of(redis, ""), face_of(redis.asyncio, "async_")
faces = pytest.mark.parametrize("face", [THREADS, ASYNCIO], ids=["threads", "asyncio"])
# Connections that are read directly, and such that redis-py reads.
ways = pytest.mark.parametrize("is_direct", [True, False], ids=["directly", "by redis-py"])


def in_a_loop(test):
    @functools.wraps(test)
    def run(**arguments):
        asyncio.run(test(**arguments))

    return run


async def awaited(value):
    return await value if inspect.isawaitable(value) else value


class Link:
    """A connection, and what both faces do with it."""

    def __init__(self, face, client, connection):
        self.face, self.client, self.connection = face, client, connection
        self._read = face.reader(client.connection_pool)

    async def send(self, *data):
        await awaited(self.face.send(self.connection, *data))

    async def read(self):
        return await awaited(self._read(self.connection))

    def wait_for_replies(self, seconds):
        if self.face is THREADS:
            self.connection._sock.settimeout(seconds)
        else:
            self.connection.socket_timeout = seconds


@contextlib.asynccontextmanager
async def opened(face, url, is_direct=True, **options):
    client = face.client.from_url(url, **options)
    if not is_direct:
        client.connection_pool.connection_class = type("Own", (face.kind,), {})
    connection = await awaited(face.get(client.connection_pool))
    yield Link(face, client, connection)
    await awaited(face.close(connection))
    await awaited(face.release(client.connection_pool, connection))
    await awaited(client.aclose() if face is ASYNCIO else client.close())


# -- replies ---------------------------------------------------------------------------------------

REPLIES = [
    (("SET", "a", "1"), b"OK"),
    (("GET", "none"), None),
    (("GET", "large"), b"x" * 1_000_000),
    (("BITFIELD", "a", "GET", "i64", "0", "GET", "u1", "1"), [0x31 << 56, 0]),
    (("LRANGE", "none", "0", "-1"), []),
    (("EVAL", "return {1, {'b', {}}, false}", "0"), [1, [b"b", []], None]),
    (("PING",), b"PONG"),
]


@ways
@faces
@pytest.mark.parametrize("protocol", [2, 3])
@in_a_loop
async def test_replies_of_all_kinds_and_lengths_are_read(r, valkey, face, is_direct, protocol):
    r.set("large", "x" * 1_000_000)
    options = {"protocol": protocol, "decode_responses": protocol == 3}
    async with opened(face, valkey, is_direct, **options) as link:
        for command, reply in REPLIES:
            await link.send(encode_command(*command))
            assert await link.read() == reply
        await link.send(b"".join(encode_command(*command) for command, _ in REPLIES))
        assert [await link.read() for _ in REPLIES] == [reply for _, reply in REPLIES]
        for command, why in [(("NONSENSE",), "unknown command"), (("LPOP", "a"), "(?i)wrong")]:
            await link.send(encode_command(*command))
            with pytest.raises(ResponseError, match=why):
                await link.read()
        await link.send(b"".join(map(encode_command, ["MULTI", "PING", "EXEC"])))
        assert [await link.read() for _ in range(3)] == [b"OK", b"QUEUED", [b"PONG"]]
        await link.send(b"".join(map(encode_command, ["PING", "NONSENSE", "PING"])))
        assert await link.read() == b"PONG"
        with pytest.raises(ResponseError, match="unknown command"):
            await link.read()
        assert await link.read() == b"PONG", "the connection was closed by an error"
        await awaited(face.close(link.connection))
        await link.send(PING)
        assert await link.read() == b"PONG", "it is opened by the next command"


@ways
@faces
@in_a_loop
async def test_messages_of_resp3_are_no_replies(r, valkey, face, is_direct):
    async with opened(face, valkey, is_direct, protocol=3) as link:
        await link.send(encode_command("CLIENT", "TRACKING", "ON", "BCAST"))
        assert await link.read() == b"OK"
        for number in range(3):
            r.set("a", number)
            # The message about it is there before the reply, or comes with it or behind it.
            await link.send(encode_command("GET", "a"))
            assert await link.read() == b"%d" % number
        for number in range(3):
            # Messages about what the connection does itself come between the replies.
            pairs = [encode_command("SET", "a", number), encode_command("GET", "a")] * 5
            await link.send(b"".join(pairs))
            assert [await link.read() for _ in pairs] == [b"OK", b"%d" % number] * 5


@ways
@faces
@in_a_loop
async def test_a_silent_server_is_a_time_out(valkey, face, is_direct):
    async with opened(face, valkey, is_direct) as link:
        link.wait_for_replies(0.2)
        await link.send(encode_command("BLPOP", "none", "0"))
        with pytest.raises(redis.TimeoutError, match="^Timeout reading from "):
            await link.read()
        assert link.connection._parser._reader is not None, "the caller closes it"


@ways
@faces
@in_a_loop
async def test_a_server_that_does_not_read_is_a_time_out(face, is_direct):
    with PrivateServer() as server:
        async with opened(face, server.url, is_direct) as link:
            # Now: the replies to what a connection begins with have all the time that they need.
            link.wait_for_replies(0.2)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                with pytest.raises(redis.TimeoutError, match="^Timeout writing to socket$"):
                    await link.send(b"x" * 50_000_000)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert not face.is_open(link.connection)


@ways
@faces
@in_a_loop
async def test_a_closed_connection_is_an_error_of_the_connection(r, valkey, face, is_direct):
    async with opened(face, valkey, is_direct) as link:
        r.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(redis.ConnectionError, match="^Connection closed by server.$"):
            await link.read()


@ways
@in_a_loop
async def test_what_cannot_be_written_closes_the_connection(valkey, is_direct):
    async with opened(THREADS, valkey, is_direct) as link:
        link.connection._sock.shutdown(2)
        with pytest.raises(redis.ConnectionError, match="^Error 32 while writing to socket. Bro"):
            await link.send(PING)
        assert link.connection._sock is None

        class Interrupted(socket.socket):
            def sendall(self, _data):
                raise KeyboardInterrupt

        link.connection.connect()
        taken = link.connection._sock.detach()
        link.connection._sock = Interrupted(socket.AF_UNIX, fileno=taken)
        with pytest.raises(KeyboardInterrupt):
            await link.send(PING)
        assert link.connection._sock is None


@in_a_loop
async def test_a_connection_is_readable_when_something_came_or_it_was_closed(r, valkey):
    async with opened(THREADS, valkey) as link:

        def is_noticed():
            return not redispy.is_usable(link.connection, 0.0)

        assert not is_noticed()
        await link.send(PING)
        wait_until(is_noticed)
        assert await link.read() == b"PONG"
        assert not is_noticed()
        r.client_kill_filter(_type="normal", skipme=True)
        wait_until(is_noticed)


# -- large strings ---------------------------------------------------------------------------------


@contextlib.contextmanager
def relayed(valkey, most=float("inf")):
    """Put a TCP port before the server, for one client; close it after `most` bytes of replies."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def relay():
            near, _ = listener.accept()
            with near, socket.socket(socket.AF_UNIX) as far:
                far.connect(urlsplit(valkey).path)
                left = most
                while left > 0:
                    source = select.select([near, far], [], [])[0][0]
                    if not (data := source.recv(65536)):
                        return
                    (far if source is near else near).sendall(data)
                    left -= len(data) * (source is far)

        thread = threading.Thread(target=relay)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


class LargeLink(Link):
    def __init__(self, link):
        super().__init__(link.face, link.client, link.connection)
        self.room = memoryview(bytearray(2 * len(LARGE) + 4096))

    def received(self, count, room=None):
        replies = []
        redispy.receive(self.connection, count, self.room if room is None else room, replies)
        return replies


@pytest.mark.parametrize("by", ["socket", "TCP"])
@pytest.mark.parametrize("protocol", [2, 3])
@in_a_loop
async def test_large_strings_pass_the_parser_by(valkey, by, protocol):
    with relayed(valkey) if by == "TCP" else contextlib.nullcontext(valkey) as url:
        async with opened(THREADS, url, protocol=protocol) as link:
            large = LargeLink(link)
            for _ in range(3):
                await link.send(*join_commands(TRANSACTION))
                replies = large.received(len(TRANSACTION))
                assert replies == ANSWERS
                assert replies[-1][2].obj is large.room.obj, "the string was copied"
                await link.send(PING)
                assert await link.read() == b"PONG", "something was left"


@in_a_loop
async def test_what_is_no_plain_reply_is_left_to_the_parser(valkey):
    async with opened(THREADS, valkey) as link:
        large = LargeLink(link)
        commands = [MULTI, SET, encode_command("INCR", "large"), encode_command("GET", "large")]
        await link.send(*join_commands([*commands, EXEC, PING]))
        assert large.received(6) == ANSWERS[:4], "EXEC's reply has an error in it"
        replies = await link.read()
        assert isinstance(replies[1], ResponseError)
        assert replies[2] == LARGE
        assert await link.read() == b"PONG"
        # More than there is room for.
        await link.send(*join_commands([*TRANSACTION, PING]))
        assert large.received(6, large.room[: len(LARGE)]) == ANSWERS[:4]
        assert [await link.read() for _ in range(2)] == [ANSWERS[4], b"PONG"]
        # More than was asked for.
        await link.send(*join_commands([*TRANSACTION, PING, PING]))
        assert large.received(5) == ANSWERS
        assert [await link.read() for _ in range(2)] == [b"PONG", b"PONG"]
        # What the parser has comes first.
        await link.send(PING + encode_command("ECHO", "before"))
        assert await link.read() == b"PONG"
        await link.send(*join_commands(TRANSACTION))
        assert large.received(5) == []
        assert [await link.read() for _ in range(6)] == [b"before", *ANSWERS]


@in_a_loop
async def test_messages_among_the_replies_are_the_parsers(r, valkey):
    async with opened(THREADS, valkey, protocol=3) as link:
        await link.send(encode_command("CLIENT", "TRACKING", "ON") + encode_command("GET", "x"))
        assert [await link.read() for _ in range(2)] == [b"OK", None]
        r.set("x", "another")
        await link.send(*join_commands(TRANSACTION))
        replies = LargeLink(link).received(5)
        assert [*replies, *[await link.read() for _ in range(5 - len(replies))]] == ANSWERS


@in_a_loop
async def test_half_a_string_is_no_reply(valkey):
    with relayed(valkey, most=len(LARGE)) as url:
        async with opened(THREADS, url) as link:
            await link.send(*join_commands(TRANSACTION))
            replies = []
            with pytest.raises(redis.ConnectionError):
                redispy.receive(link.connection, 5, LargeLink(link).room, replies)
            assert replies == ANSWERS[:4]


# -- messages, pools, Sentinel and clusters --------------------------------------------------------


@faces
@pytest.mark.parametrize("options", [{}, {"protocol": 3, "decode_responses": True}], ids=str)
@in_a_loop
async def test_a_subscribed_connection_beside_the_pool(r, valkey, face, options):
    client = face.client.from_url(valkey, max_connections=1, **options)
    if face is THREADS:
        made = connections.open_connection(client.connection_pool, 5.0)
    else:
        made = await connections.async_open_connection(client.connection_pool)

    async def read(seconds=LONG):
        if face is ASYNCIO:
            return await redispy.async_read_push(made, seconds)
        redispy.set_read_timeout(made, seconds)
        try:
            return redispy.reply_reader(client.connection_pool)(made)
        except redis.TimeoutError:
            return None

    await awaited(face.send(made, encode_command("SUBSCRIBE", "c")))
    assert (await read())[0] == b"subscribe"
    await awaited(client.publish("c", "hello"))
    assert await read() == [b"message", b"c", b"hello"]
    assert await read(0.01) is None
    # Two in one packet, each longer than a read.
    long = "x" * 10_000
    with r.pipeline(transaction=False) as pipeline:
        pipeline.publish("c", long).publish("c", "last").execute()
    assert await read() == [b"message", b"c", long.encode()]
    assert await read() == [b"message", b"c", b"last"]
    r.client_kill_filter(_type="pubsub")
    with pytest.raises((redis.ConnectionError, OSError)):
        await read()
    await awaited(face.close(made))
    wait_until(lambda: not dict(r.pubsub_numsub("c"))[b"c"])
    await awaited(client.connection_pool.disconnect())


def test_pools_say_how_many_connections_they_may_have():
    for face in (THREADS, ASYNCIO):
        few = face.client(max_connections=3).connection_pool
        assert connections.max_connections(few, 16) == 3
        assert connections.may_keep_one(face.client().connection_pool)
        assert not connections.may_keep_one(few)
    assert not connections.may_keep_one(redis.BlockingConnectionPool())
    assert not connections.may_keep_one(None)


@in_a_loop
async def test_a_blocking_pool_of_asyncio_waits_in_its_release(valkey):
    pool = redis.asyncio.BlockingConnectionPool.from_url(valkey, max_connections=1)
    made = await connections.async_get_connection(pool)
    await pool._condition.acquire()
    release = asyncio.create_task(connections.async_release(pool, made))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not release.done()
    pool._condition.release()
    await release
    await pool.disconnect()


@faces
@in_a_loop
async def test_the_reply_of_a_replica_is_a_reply_although_sentinel_is_asked(face):
    binary = servers.require_server("valkey")
    with (
        PrivateServer(binary=binary, port=servers.low_port()) as server,
        servers.sentinel(binary, "mymaster", server.port) as port,
        redis.Redis(port=server.port) as admin,
    ):

        def is_known():
            with contextlib.suppress(redis.ConnectionError):
                return redis.sentinel.Sentinel([("127.0.0.1", port)]).discover_master("mymaster")

        wait_until(is_known)
        watching = face.sentinel([("127.0.0.1", port)], socket_timeout=LONG)
        pool = watching.master_for("mymaster").connection_pool
        assert hasattr(pool, "sentinel_manager")
        assert not hasattr(admin.connection_pool, "sentinel_manager")
        assert not connections.may_keep_one(pool)
        made = await awaited(face.get(pool))
        admin.replicaof("127.0.0.1", port)
        await awaited(face.send(made, encode_command("SET", "a", "1") + PING))
        with pytest.raises(ReadOnlyError):
            await awaited(face.reader(pool)(made))
        assert await awaited(face.reader(pool)(made)) == b"PONG"
        await awaited(face.close(made))


def port_of(source):
    return int(source.connection_kwargs["port"])


@faces
@in_a_loop
async def test_the_servers_of_a_cluster(cluster, nodes, face):
    cluster.set("{a}b", "1")
    slot = cluster_map.slot_of("a")
    mover = SlotMover(nodes, [slot], 0)
    old = mover.port_of(slot)
    new = next(port for port in map(servers.port_of, nodes) if port != old)
    assert slot == cluster_map.slot_of("{a}b") == cluster.keyslot("a")
    client = face.cluster(host="127.0.0.1", port=old)
    if face is ASYNCIO:
        await client.initialize()
    assert connections.own_pool(client) is None
    assert port_of(face.source_of_key(client, "a")) == old
    assert port_of(face.source_of_address(client, "127.0.0.1", new)) == new
    assert face.source_of_address(client, "127.0.0.1", 1) is None
    assert face.source_of_address(client, "", old) is None
    assert connections.max_connections(face.source_of_key(client, "a"), 16) > 16
    for port in (new, old):
        await awaited(face.note_moved(client, MovedError(f"{slot} 127.0.0.1:{port}")))
        assert port_of(face.source_of_key(client, "a")) == port
    mover.move(slot)
    new = mover.port_of(slot)
    await awaited(client.nodes_manager.initialize())
    source = face.source_of_key(client, "a")
    assert port_of(source) == new
    made = await awaited(face.get(source))
    await awaited(face.send(made, encode_command("GET", "{a}b")))
    assert await awaited(face.reader(None)(made)) == b"1"
    await awaited(face.release(source, made))
    await awaited(client.aclose() if face is ASYNCIO else client.close())
