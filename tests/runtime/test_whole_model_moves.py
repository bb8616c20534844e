"""The randomized model of filters by name on a cluster whose slots move all the time."""

from __future__ import annotations

from collections import Counter

import pytest
import servers
from randomized import naming
from redis.cluster import RedisCluster
from slot_moves import moving
from whole_model import KINDS, NAMES, Model

from bloomlock.keys import FilterKeys, slot_of

ROUNDS, MANY = 1, 60
SHARDS = 3


@pytest.fixture(scope="module")
def nodes():
    with servers.cluster(60_000) as clients:
        yield clients


def slots():
    """Return the slots of all shards of all names."""
    keys = [
        FilterKeys(name).spread(SHARDS).bits(shard) for name in NAMES for shard in range(SHARDS)
    ]
    return sorted({slot_of(key.partition("{")[2].partition("}")[0]) for key in keys})


def moved(nodes, tmp_path, kind, rounds, seed):
    port = nodes[0].connection_pool.connection_kwargs["port"]
    changes: Counter[str] = Counter()
    answers = moves = 0
    for number in range(rounds):
        for node in nodes:
            node.flushall()
        with RedisCluster(host="127.0.0.1", port=port) as client:
            model = Model(client, f"{seed} {number}", kind, tmp_path)
            with moving(nodes, slots(), seed + number) as mover, naming(model):
                assert model.run() == []
        changes += model.changes
        answers += model.answers
        moves += mover.moves
        left = [key for node in nodes for key in node.scan_iter("*:next:*") if node.ttl(key) < 0]
        assert left == []
    print(f"{answers} answers, {moves} moves: {dict(changes)}")
    assert sum(changes.values()) > rounds
    assert moves > rounds


@pytest.mark.parametrize("kind", KINDS)
def test_no_item_is_lost_or_invented_while_slots_move(nodes, tmp_path, kind, seed):
    moved(nodes, tmp_path, kind, ROUNDS, seed)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_many_rounds_while_slots_move(nodes, tmp_path, kind, seed):
    moved(nodes, tmp_path, kind, MANY, seed)
