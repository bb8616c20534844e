"""Whether a server has the room for a filter, and keeps what is written to it.

A server takes the memory of a shard at once, also where that is more than it may have: above
`maxmemory` it then refuses the writes of all its clients, above the memory of its machine the
system kills a process. So it is asked first how much it has. Nothing is reserved: of two filters
that are created at the same time each may fit, and both not.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bloomlock.commands import encode_command
from bloomlock.delivery import deliver
from bloomlock.effects import ConnectionLost, Core, Request
from bloomlock.errors import ConfigurationError
from bloomlock.sizing import bytes_text

if TYPE_CHECKING:
    from bloomlock.descriptor import Descriptor
    from bloomlock.keys import FilterKeys

logger = logging.getLogger("bloomlock")

_LOOK = (
    encode_command("INFO"),
    # The modules of Redis recognise an Active-Active database by it.
    encode_command("COMMAND", "INFO", "CRDT.CONFIG"),
    # An error where there is none.
    encode_command("CLUSTER", "INFO"),
)


def check_room(keys: FilterKeys, planned: Descriptor, shard_bytes: int) -> Core[None]:
    """Refuse to create a filter on a server that has no room for it, or would lose bits of it.

    The server of the first shard is asked. A server needs `shard_bytes` for each shard; a master of
    a cluster has its share of the shards. A server that does not answer INFO is taken to have room.
    """
    try:
        info, crdt, cluster = yield from deliver(Request(keys.bits(0), _LOOK), repeatable=True)
    except ConnectionLost as lost:
        raise lost.cause from None
    texts = [
        text.decode(errors="replace")
        for text in (info, cluster)
        if isinstance(text, (bytes, bytearray))
    ]
    lines = "\n".join(texts).splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    several = "a KeyDB active replica" if fields.get("role") == "active-replica" else None
    if isinstance(crdt, list) and any(crdt):
        several = "a Redis Enterprise Active-Active database"
    if several is not None:
        raise ConfigurationError(
            f"filter {keys.name!r} cannot be on this server, which is {several}: each of its "
            "masters takes writes to the same string, of which the last one wins, so bits that "
            "were set are lost; give a server with one master for each key"
        )
    numbers = {name: int(text) for name, text in fields.items() if text.isdigit()}
    used, limit = numbers.get("used_memory", 0), numbers.get("maxmemory", 0)
    total = numbers.get("total_system_memory", 0)
    policy = fields.get("maxmemory_policy", "noeviction")
    bounds: list[tuple[int, str]] = []
    if limit:
        # With another policy what else is there gives way, as far as it may be evicted, which
        # cannot be seen.
        free = limit - used if policy == "noeviction" else limit
        bounds.append((max(0, free), f"maxmemory is {bytes_text(limit)}"))
    if total:
        bounds.append((max(0, total - used), f"its machine has {bytes_text(total)}"))
    in_cluster = "cluster" in (fields.get("redis_mode"), fields.get("server_mode"))
    share = planned.size.shards
    if in_cluster:
        # A client that may not ask for the number of masters knows of one shard.
        share = -(-share // (numbers.get("cluster_size", 0) or share))
    # What an allocator has for a long string is longer by a quarter at most.
    wanted = shard_bytes * share * 5 // 4
    if bounds and wanted > min(bounds)[0]:
        free, why = min(bounds)
        where = "a server of the cluster" if in_cluster else "its server"
        raise ConfigurationError(
            f"capacity is {planned.capacity} at error_rate {planned.error_rate:g}: filter "
            f"{keys.name!r} takes {bytes_text(wanted)} of memory and {where} has "
            f"{bytes_text(free)} free ({why}); give a smaller capacity, a larger error_rate or "
            "another server"
        )
    if limit and policy.startswith("allkeys"):
        logger.warning(
            "filter %r may be evicted, and with it all that it has seen: its server's "
            "maxmemory-policy is %s; use noeviction",
            keys.name,
            policy,
        )
