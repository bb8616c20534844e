"""What is used of redis-py beyond its documentation does on real servers what it is used for.

A version of redis-py that fails here is one that the library does not work with.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import threading
import time
from contextlib import ExitStack
from functools import partial
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
import servers
from private import PrivateServer
from redis.auth.token import SimpleToken
from redis.exceptions import MovedError, ReadOnlyError, ResponseError
from servers import wait_until

from bloomlock.commands import EXEC, MULTI, encode_command, encode_large, join_commands
from bloomlock.runtime import cluster as cluster_map
from bloomlock.runtime import connections, redispy

LONG = 60.0
PING = encode_command("PING")
TOKEN = SimpleToken("second", (time.time() + 3600) * 1000, time.time() * 1000, {"oid": "rotated"})


@pytest.fixture
def connection(r):
    made = r.connection_pool.get_connection()
    yield made
    r.connection_pool.release(made)


@pytest.fixture(scope="module")
def nodes():
    """Two masters of one cluster; the first has the slots of "a" and most others."""
    with ExitStack() as stack:
        binary = servers.require_server("valkey")
        started = [
            stack.enter_context(
                PrivateServer(
                    binary=binary, port=servers.low_port(), config={"cluster-enabled": "yes"}
                )
            )
            for _ in range(2)
        ]
        made = [redis.Redis(port=node.port, decode_responses=True) for node in started]
        # A master that gives away its last slot becomes a replica.
        made[0].execute_command("CLUSTER", "ADDSLOTSRANGE", 1, 16383)
        made[1].execute_command("CLUSTER", "ADDSLOTS", 0)
        made[1].execute_command("CLUSTER", "SET-CONFIG-EPOCH", 2)
        made[0].execute_command("CLUSTER", "MEET", "127.0.0.1", started[1].port)
        wait_until(
            lambda: all(
                each.cluster("info").get("cluster_state") == "ok"
                and len(each.cluster("nodes")) == 2
                and not any("handshake" in node["flags"] for node in each.cluster("nodes").values())
                for each in made
            )
        )
        yield made


def port_of(source):
    return int(source.connection_kwargs["port"])


def hand_over(nodes, slot, to):
    """Let another server have a slot."""
    name = to.execute_command("CLUSTER", "MYID")
    for node in [to, *nodes]:
        node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", name)


@pytest.mark.parametrize("options", [{}, {"protocol": 3, "decode_responses": True}], ids=str)
def test_commands_are_sent_as_they_are_and_replies_come_as_bytes(valkey, options):
    with redis.Redis.from_url(valkey, **options) as client:
        made = client.connection_pool.get_connection()
        read = redispy.reply_reader(client.connection_pool)
        redispy.send(made, encode_command("SET", "a", "1") + encode_command("GET", "a"))
        assert read(made) == b"OK"
        assert read(made) == b"1"
        redispy.send(made, encode_command("NONSENSE") + PING)
        with pytest.raises(ResponseError):
            read(made)
        assert read(made) == b"PONG", "the connection was closed by an error"
        client.connection_pool.release(made)


@pytest.mark.parametrize("options", [{}, {"protocol": 3, "decode_responses": True}], ids=str)
def test_the_same_for_asyncio(valkey, options):
    async def run():
        async with redis.asyncio.Redis.from_url(valkey, **options) as client:
            made = await connections.async_get_connection(client.connection_pool)
            read = redispy.async_reply_reader(client.connection_pool)
            await redispy.async_send(
                made, encode_command("SET", "a", "1") + encode_command("GET", "a")
            )
            assert await read(made) == b"OK"
            assert await read(made) == b"1"
            await redispy.async_send(made, encode_command("NONSENSE") + PING)
            with pytest.raises(ResponseError):
                await read(made)
            assert await read(made) == b"PONG"
            await connections.async_release(client.connection_pool, made)
            again = await connections.async_get_connection(client.connection_pool)
            assert again is made
            await connections.async_release(client.connection_pool, again)

    asyncio.run(run())


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
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def received(made, count, room):
    replies = []
    redispy.receive(made, count, room, replies)
    return replies


@pytest.mark.parametrize("options", [{}, {"protocol": 3, "decode_responses": True}], ids=str)
def test_large_strings_pass_the_parser_by(valkey, options):
    check_large_strings(valkey, options)
    with relayed(valkey) as address:
        check_large_strings(f"redis://{address}", options)


def check_large_strings(url, options):
    room = memoryview(bytearray(2 * len(LARGE) + 4096))
    with redis.Redis.from_url(url, **options) as client:
        made = client.connection_pool.get_connection()
        read = redispy.reply_reader(client.connection_pool)
        for _ in range(3):
            redispy.send(made, *join_commands(TRANSACTION))
            replies = received(made, len(TRANSACTION), room)
            assert replies == ANSWERS
            assert replies[-1][2].obj is room.obj, "the string was copied"
            redispy.send(made, PING)
            assert read(made) == b"PONG", "something was left"
        client.connection_pool.release(made)


def test_what_is_no_plain_reply_is_left_to_the_parser(r, connection):
    read = redispy.reply_reader(r.connection_pool)
    room = memoryview(bytearray(2 * len(LARGE) + 4096))
    wrong = encode_command("INCR", "large")
    commands = [MULTI, SET, wrong, encode_command("GET", "large"), EXEC]
    redispy.send(connection, *join_commands([*commands, PING]))
    assert received(connection, 6, room) == ANSWERS[:4], "EXEC's reply has an error in it"
    replies = read(connection)
    assert isinstance(replies[1], ResponseError)
    assert replies[2] == LARGE
    assert read(connection) == b"PONG"
    # More than there is room for.
    redispy.send(connection, *join_commands([*TRANSACTION, PING]))
    assert received(connection, 6, room[: len(LARGE)]) == ANSWERS[:4]
    assert read(connection) == ANSWERS[4]
    assert read(connection) == b"PONG"
    # More than was asked for.
    redispy.send(connection, *join_commands([*TRANSACTION, PING, PING]))
    assert received(connection, 5, room) == ANSWERS
    assert [read(connection), read(connection)] == [b"PONG", b"PONG"]


def test_what_the_parser_has_left_comes_first(r, connection):
    read = redispy.reply_reader(r.connection_pool)
    room = memoryview(bytearray(2 * len(LARGE) + 4096))
    redispy.send(connection, PING + encode_command("ECHO", "before"))
    assert read(connection) == b"PONG"
    redispy.send(connection, *join_commands(TRANSACTION))
    assert received(connection, 5, room) == []
    assert read(connection) == b"before"
    assert [read(connection) for _ in range(5)] == ANSWERS


def test_messages_among_the_replies_are_the_parsers(valkey):
    room = memoryview(bytearray(2 * len(LARGE) + 4096))
    with redis.Redis.from_url(valkey, protocol=3) as client:
        made = client.connection_pool.get_connection()
        read = redispy.reply_reader(client.connection_pool)
        redispy.send(made, encode_command("CLIENT", "TRACKING", "ON") + encode_command("GET", "x"))
        assert read(made) == b"OK"
        read(made)
        client.set("x", "another")
        redispy.send(made, *join_commands(TRANSACTION))
        replies = received(made, 5, room)
        replies += [read(made) for _ in range(5 - len(replies))]
        assert replies == ANSWERS
        client.connection_pool.release(made)


def test_half_a_string_is_no_reply(valkey):
    room = memoryview(bytearray(2 * len(LARGE) + 4096))
    with (
        relayed(valkey, most=len(LARGE)) as address,
        redis.Redis.from_url(f"redis://{address}") as r,
    ):
        made = r.connection_pool.get_connection()
        redispy.send(made, *join_commands(TRANSACTION))
        replies = []
        with pytest.raises(redis.ConnectionError):
            redispy.receive(made, 5, room, replies)
        assert replies == ANSWERS[:4]
        redispy.close_quietly(made)
        r.connection_pool.release(made)


class Watched(redis.UnixDomainSocketConnection):
    """One of a class of its own, which is used by redis-py's methods only."""

    reads = 0

    def read_response(self, *arguments, **options):
        self.reads += 1
        return super().read_response(*arguments, **options)


WAYS = ["directly", "by redis-py"]


@pytest.fixture(params=WAYS)
def opened(request, valkey):
    """Connections that are read directly, and such that redis-py reads, for the same tests."""
    made = []

    def open_one(url=valkey, **options):
        source = redis.Redis.from_url(url, **options)
        if request.param != WAYS[0]:
            source.connection_pool.connection_class = Watched
        made.append((source, source.connection_pool.get_connection()))
        return made[-1][1]

    yield open_one
    for source, connection in made:
        source.connection_pool.release(connection)
        source.close()


REPLIES = [
    (("SET", "a", "1"), b"OK"),
    (("GET", "none"), None),
    (("GET", "large"), b"x" * 1_000_000),
    (("BITFIELD", "a", "GET", "i64", "0", "GET", "u1", "1"), [0x31 << 56, 0]),
    (("LRANGE", "none", "0", "-1"), []),
    (("EVAL", "return {1, {'b', {}}, false}", "0"), [1, [b"b", []], None]),
    (("PING",), b"PONG"),
]


@pytest.mark.parametrize("protocol", [2, 3])
def test_replies_of_all_kinds_and_lengths_are_read(r, opened, protocol):
    r.set("large", "x" * 1_000_000)
    connection = opened(protocol=protocol)
    read = redispy.reply_reader(r.connection_pool)
    for command, reply in REPLIES:
        redispy.send(connection, encode_command(*command))
        assert read(connection) == reply
    redispy.send(connection, b"".join(encode_command(*command) for command, _ in REPLIES))
    assert [read(connection) for _ in REPLIES] == [reply for _, reply in REPLIES]
    for command, why in [(("NONSENSE",), "unknown command"), (("LPOP", "a"), "WRONGTYPE|wrong")]:
        redispy.send(connection, encode_command(*command))
        with pytest.raises(ResponseError, match=why):
            read(connection)
    redispy.send(connection, b"".join(map(encode_command, ["MULTI", "PING", "EXEC"])))
    assert [read(connection) for _ in range(3)] == [b"OK", b"QUEUED", [b"PONG"]]
    redispy.send(connection, b"".join(map(encode_command, ["PING", "NONSENSE", "PING"])))
    assert read(connection) == b"PONG"
    with pytest.raises(ResponseError, match="unknown command"):
        read(connection)
    assert read(connection) == b"PONG"


def test_messages_of_resp3_are_no_replies(r, opened):
    connection = opened(protocol=3)
    read = redispy.reply_reader(r.connection_pool)
    redispy.send(connection, encode_command("CLIENT", "TRACKING", "ON", "BCAST"))
    assert read(connection) == b"OK"
    for number in range(3):
        r.set("a", number)
        # The message about it is there before the reply, or comes with it or behind it.
        redispy.send(connection, encode_command("GET", "a"))
        assert read(connection) == b"%d" % number
    for number in range(3):
        # Messages about what the connection does itself come between the replies.
        pairs = [encode_command("SET", "a", number), encode_command("GET", "a")] * 5
        redispy.send(connection, b"".join(pairs))
        assert [read(connection) for _ in pairs] == [b"OK", b"%d" % number] * 5


def test_a_silent_server_is_a_time_out(r, opened):
    connection = opened()
    connection._sock.settimeout(0.2)
    redispy.send(connection, encode_command("BLPOP", "none", "0"))
    with pytest.raises(redis.TimeoutError, match="^Timeout reading from "):
        redispy.reply_reader(r.connection_pool)(connection)
    assert connection._sock is not None, "the caller closes it"


def test_a_server_that_does_not_read_is_a_time_out(opened):
    with PrivateServer() as server:
        connection = opened(server.url)
        # Now: the replies to what a connection begins with have all the time that they need.
        connection._sock.settimeout(0.2)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(redis.TimeoutError, match="^Timeout writing to socket$"):
                redispy.send(connection, b"x" * 50_000_000)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert connection._sock is None


def test_a_closed_connection_is_an_error_of_the_connection(r, opened):
    one, two = opened(), opened()
    r.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(redis.ConnectionError, match="^Connection closed by server.$"):
        redispy.reply_reader(r.connection_pool)(one)
    two._sock.shutdown(2)
    with pytest.raises(redis.ConnectionError, match="^Error 32 while writing to socket. Broken"):
        redispy.send(two, PING)
    assert two._sock is None


def test_an_interrupt_while_sending_closes_the_connection(opened):
    connection = opened()

    class Interrupted:
        def __init__(self, sock):
            self._sock = sock

        def sendall(self, _data):
            raise KeyboardInterrupt

        def __getattr__(self, name):
            return getattr(self._sock, name)

    connection._sock = Interrupted(connection._sock)
    with pytest.raises(KeyboardInterrupt):
        redispy.send(connection, PING)
    assert connection._sock is None


def test_a_closed_connection_is_opened_by_the_next_command(r, connection):
    redispy.close_quietly(connection)
    redispy.send(connection, PING)
    assert redispy.reply_reader(r.connection_pool)(connection) == b"PONG"

    async def run():
        path = r.connection_pool.connection_kwargs["path"]
        async with redis.asyncio.Redis(unix_socket_path=path) as client:
            made = await connections.async_get_connection(client.connection_pool)
            await redispy.async_close_quietly(made)
            await redispy.async_send(made, PING)
            assert await redispy.async_reply_reader(client.connection_pool)(made) == b"PONG"
            await connections.async_release(client.connection_pool, made)

    asyncio.run(run())


def test_a_connection_is_readable_when_something_came_or_it_was_closed(r, connection):
    assert connections.is_usable(connection, 0.0)
    redispy.send(connection, PING)
    wait_until(lambda: not connections.is_usable(connection, 0.0))
    assert redispy.reply_reader(r.connection_pool)(connection) == b"PONG"
    assert connections.is_usable(connection, 0.0)
    r.client_kill_filter(_type="normal", skipme=True)

    def is_noticed():
        try:
            return not connections.is_usable(connection, 0.0)
        except redis.ConnectionError:
            return True

    wait_until(is_noticed)


@pytest.mark.skipif(int(redis.__version__.split(".")[0]) < 7, reason="marks came with redis-py 7")
def test_a_connection_marked_for_a_reconnect_is_closed_by_its_release(r, connection):
    assert not connections.is_marked(connection)
    connection.mark_for_reconnect()
    assert connections.is_marked(connection)
    r.connection_pool.release(connection)
    assert r.connection_pool.get_connection() is connection
    assert not connections.is_marked(connection)


def test_a_rotated_credential_is_used_at_the_release(r):
    r.execute_command("ACL", "SETUSER", "rotated", "on", ">second", "~*", "&*", "+@all")
    try:
        made = r.connection_pool.get_connection()
        assert not connections.is_marked(made)
        made.set_re_auth_token(TOKEN)
        assert connections.is_marked(made)
        r.connection_pool.release(made)
        assert not connections.is_marked(made)
        redispy.send(made, encode_command("ACL", "WHOAMI"))
        assert redispy.reply_reader(r.connection_pool)(made) == b"rotated"
        redispy.close_quietly(made)
    finally:
        r.acl_deluser("rotated")


def subscribed(client, channel="c"):
    return dict(client.pubsub_numsub(channel))[channel.encode()] == 1


@pytest.mark.parametrize("options", [{}, {"protocol": 3, "decode_responses": True}], ids=str)
def test_a_subscribed_connection_beside_the_pool(r, valkey, options):
    with redis.Redis.from_url(valkey, max_connections=1, **options) as client:
        pool = client.connection_pool
        made = connections.open_connection(pool, 5.0)
        redispy.send(made, encode_command("SUBSCRIBE", "c"))
        read = partial(redispy.reply_reader(pool), made)
        assert read()[0] == b"subscribe"
        client.publish("c", "hello")
        assert read() == [b"message", b"c", b"hello"]
        redispy.set_read_timeout(made, 0.01)
        with pytest.raises(redis.TimeoutError):
            read()
        redispy.set_read_timeout(made, LONG)
        client.publish("c", "again")
        assert read() == [b"message", b"c", b"again"]
        # Two in one packet, each longer than a read.
        long = "x" * 10_000
        with client.pipeline(transaction=False) as pipeline:
            pipeline.publish("c", long).publish("c", "last").execute()
        assert read() == [b"message", b"c", long.encode()]
        assert read() == [b"message", b"c", b"last"]
        redispy.send(made, encode_command("GET", "c"))
        with pytest.raises(ResponseError):
            read()
        r.client_kill_filter(_type="pubsub")
        with pytest.raises((redis.ConnectionError, OSError)):
            read()
        redispy.close_quietly(made)
        wait_until(lambda: not subscribed(r))


@pytest.mark.parametrize("options", [{}, {"protocol": 3, "decode_responses": True}], ids=str)
def test_a_subscribed_connection_of_asyncio(r, valkey, options):
    async def run():
        async with redis.asyncio.Redis.from_url(valkey, max_connections=1, **options) as client:
            made = await connections.async_open_connection(client.connection_pool)
            await redispy.async_send(made, encode_command("SUBSCRIBE", "c"))
            assert (await redispy.async_read_push(made))[0] == b"subscribe"
            await client.publish("c", "hello")
            assert await redispy.async_read_push(made, LONG) == [b"message", b"c", b"hello"]
            assert await redispy.async_read_push(made, 0.01) is None
            await client.publish("c", "again")
            assert await redispy.async_read_push(made, LONG) == [b"message", b"c", b"again"]
            await redispy.async_close_quietly(made)

    asyncio.run(run())
    wait_until(lambda: not subscribed(r))


def test_pools_say_how_many_connections_they_may_have():
    few, waits = redis.Redis(max_connections=3), redis.BlockingConnectionPool()
    assert connections.max_connections(few.connection_pool, 16) == 3
    assert (
        connections.max_connections(redis.asyncio.Redis(max_connections=3).connection_pool, 16) == 3
    )
    assert connections.may_keep_one(redis.Redis().connection_pool)
    assert not connections.may_keep_one(few.connection_pool)
    assert not connections.may_keep_one(waits)
    assert not connections.may_keep_one(None)


def test_a_blocking_pool_of_asyncio_waits_in_its_release(valkey):
    async def run():
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

    asyncio.run(run())


def is_known(watching):
    try:
        return bool(watching.discover_master("mymaster"))
    except redis.ConnectionError:
        return False


def test_the_reply_of_a_replica_is_a_reply_although_sentinel_is_asked():
    binary = servers.require_server("valkey")
    with (
        PrivateServer(binary=binary, port=servers.low_port()) as server,
        servers.sentinel(binary, "mymaster", server.port) as port,
        redis.Redis(port=server.port) as admin,
    ):
        watching = redis.sentinel.Sentinel([("127.0.0.1", port)], socket_timeout=LONG)
        wait_until(lambda: is_known(watching))
        pool = watching.master_for("mymaster").connection_pool
        assert hasattr(pool, "sentinel_manager")
        assert not hasattr(admin.connection_pool, "sentinel_manager")
        assert not connections.may_keep_one(pool)
        made = pool.get_connection()

        async def run():
            watching = redis.asyncio.sentinel.Sentinel([("127.0.0.1", port)], socket_timeout=LONG)
            source = watching.master_for("mymaster").connection_pool
            assert hasattr(source, "sentinel_manager")
            made = await connections.async_get_connection(source)
            admin.replicaof("127.0.0.1", port)
            await redispy.async_send(made, encode_command("SET", "a", "1") + PING)
            with pytest.raises(ReadOnlyError):
                await redispy.async_reply_reader(source)(made)
            assert await redispy.async_reply_reader(source)(made) == b"PONG"
            await redispy.async_close_quietly(made)

        asyncio.run(run())
        redispy.send(made, encode_command("SET", "a", "1") + PING)
        with pytest.raises(ReadOnlyError):
            redispy.reply_reader(pool)(made)
        assert redispy.reply_reader(pool)(made) == b"PONG"
        redispy.close_quietly(made)


def test_the_servers_of_a_cluster(nodes):
    first, second = (port_of(node.connection_pool) for node in nodes)
    with redis.RedisCluster(host="127.0.0.1", port=first) as cluster:
        assert connections.own_pool(cluster) is None
        slot = nodes[0].execute_command("CLUSTER", "KEYSLOT", "{a}b")
        assert cluster_map.slot_of("{a}b") == cluster_map.slot_of("a") == slot
        assert port_of(cluster_map.source_of_key(cluster, "a")) == first
        assert port_of(cluster_map.source_of_address(cluster, "127.0.0.1", first)) == first
        assert cluster_map.source_of_address(cluster, "127.0.0.1", 1) is None
        try:
            hand_over(nodes, slot, nodes[1])
            cluster_map.note_moved(cluster, MovedError(f"{slot} 127.0.0.1:{second}"))
            assert port_of(cluster_map.source_of_key(cluster, "a")) == second
            cluster_map.note_moved(cluster, MovedError(f"{slot} 127.0.0.1:{first}"))
            assert port_of(cluster_map.source_of_key(cluster, "a")) == first
            cluster.nodes_manager.initialize()
            assert port_of(cluster_map.source_of_key(cluster, "a")) == second
            made = cluster_map.source_of_key(cluster, "a").get_connection()
            redispy.send(made, encode_command("SET", "a", "1"))
            assert redispy.reply_reader(None)(made) == b"OK"
            cluster_map.source_of_key(cluster, "a").release(made)
        finally:
            nodes[1].flushall()
            hand_over(nodes, slot, nodes[0])


def test_the_servers_of_a_cluster_for_asyncio(nodes):
    first, second = (port_of(node.connection_pool) for node in nodes)
    slot = cluster_map.slot_of("a")

    async def run():
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=first) as cluster:
            await cluster.initialize()
            source = cluster.get_node_from_key("a")
            assert port_of(source) == first
            assert connections.max_connections(source, 16) > 16
            assert cluster_map.async_source_of_address(cluster, "127.0.0.1", first) is source
            assert cluster_map.async_source_of_address(cluster, "127.0.0.1", 1) is None
            hand_over(nodes, slot, nodes[1])
            await cluster_map.async_note_moved(cluster, MovedError(f"{slot} 127.0.0.1:{second}"))
            assert port_of(cluster.get_node_from_key("a")) == second
            await cluster_map.async_note_moved(cluster, MovedError(f"{slot} 127.0.0.1:{first}"))
            assert port_of(cluster.get_node_from_key("a")) == first
            assert cluster_map.async_source_of_address(cluster, "", first) is None
            await cluster.nodes_manager.initialize()
            source = cluster.get_node_from_key("a")
            assert port_of(source) == second
            made = await connections.async_get_connection(source)
            await redispy.async_send(made, encode_command("SET", "a", "1"))
            assert await redispy.async_reply_reader(source)(made) == b"OK"
            await connections.async_release(source, made)
            # The node has had one more, for what the client asked itself.
            taken = [await connections.async_get_connection(source) for _ in range(2)]
            assert made in taken
            for each in taken:
                await connections.async_release(source, each)

    try:
        asyncio.run(run())
    finally:
        nodes[1].flushall()
        hand_over(nodes, slot, nodes[0])
