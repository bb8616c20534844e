"""The queue that processes share, on a real cluster of three servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import servers
from redis.cluster import ClusterNode, RedisCluster
from scrapy import Request, Spider
from scrapy.settings import Settings

from bloomlock import BloomFilter, ConfigurationError
from scrapy_ext.request_queue import Exchange, Push, RequestQueue
from scrapy_ext.settings import QueueSettings
from scrapy_ext.spiders import StartMessages

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with servers.cluster(2000) as clients:
        port = clients[0].connection_pool.connection_kwargs["port"]
        with RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port)]) as made:
            yield made


def queue_of(cluster: RedisCluster, name: str, shards: int = 1, **settings: Any) -> RequestQueue:
    shared = BloomFilter(name, 1000, client=cluster, shards=shards)
    return RequestQueue(shared, cluster, Spider("spider"), QueueSettings.read(Settings(settings)))


@pytest.mark.parametrize("key", [None, "%(spider)s:{pages}:mine"])
def test_queue_and_filter_lie_in_one_slot(cluster: RedisCluster, key: str | None) -> None:
    settings = {} if key is None else {"SCHEDULER_QUEUE_KEY": key}
    queue = queue_of(cluster, "pages", **settings)
    queue.shared.clear()
    assert queue.key == ("spider:requests:{pages}" if key is None else "spider:{pages}:mine")
    queue.exchange(Exchange(0))
    request = Request("http://site/")
    pushes = [Push(request, b"1", "n", queue.encode(request))] * 2
    answer = queue.exchange(Exchange(1, pushes, wanted=2))
    assert answer.pushed == [True, False]
    assert [queue.decode(entry).url for _, entry in answer.got] == ["http://site/"]
    assert not queue.leave()
    assert queue_of(cluster, "100%").key == "spider:requests:{100%25}"


def test_keys_in_other_slots_are_refused(cluster: RedisCluster) -> None:
    with pytest.raises(ConfigurationError, match=r"SCHEDULER_QUEUE_KEY is 'mine'; allowed .*\{p\}"):
        queue_of(cluster, "p", SCHEDULER_QUEUE_KEY="mine")
    with pytest.raises(ConfigurationError, match="'many' has 6 shards; on a cluster the scheduler"):
        queue_of(cluster, "many", shards=6)


def test_messages_at_any_key(cluster: RedisCluster) -> None:
    cluster.rpush("feed", "a", "b")
    messages = StartMessages(cluster, "feed", "list", 60.0)
    (first,) = messages.take(1)
    assert first[1] == b"a"
    assert [message for _, message in messages.take(2, [first[0]])] == [b"b"]
