"""Whether the servers have the room for a filter, and keep what is written to it.

A server takes the memory of a shard at once, also where that is more than it may have: above
`maxmemory` it then refuses the writes of all its clients, above the memory of its machine the
system kills a process. So the servers are asked first how much they have. Nothing is reserved: of
two filters that are created at the same time each may fit, and both not.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bloomlock.commands import Replies, encode_command
from bloomlock.delivery import deliver
from bloomlock.effects import ConnectionLost, Core, Request
from bloomlock.errors import ConfigurationError
from bloomlock.parallel import in_parallel
from bloomlock.sizing import bytes_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bloomlock.descriptor import Descriptor
    from bloomlock.keys import FilterKeys

    Fields = dict[str, str]

logger = logging.getLogger("bloomlock")

_KIND = (
    encode_command("INFO", "replication"),
    # The modules of Redis recognise an Active-Active database by it.
    encode_command("COMMAND", "INFO", "CRDT.CONFIG"),
)
_ROOM = (encode_command("INFO", "server"), encode_command("INFO", "memory"))
_SMALL = 16 * 1024
_STRING_HEADER = 17


def check_room(
    keys: FilterKeys, planned: Descriptor, *, replaces: bool, slices: int = 1
) -> Core[None]:
    """Refuse to create a filter on servers that have no room for it, or would lose bits of it.

    `replaces`: there may be shards of an earlier filter, whose memory becomes free. `slices`: how
    many slices it is to have if it grows.

    Cost: one round trip; two in a cluster, or if something is replaced. A server that does not
    answer INFO is taken to have room, and to have one master for each key.
    """
    replication, crdt, *room = yield from _ask_server(keys.bits(0), _KIND)
    if (several := masters_of_a_key(_fields_of([replication]), crdt)) is not None:
        raise ConfigurationError(
            f"filter {keys.name!r} cannot be on this server, which is {several}: each of its "
            "masters takes writes to the same string, of which the last one wins, so bits that "
            "were set are lost; give a server with one master for each key"
        )
    answers, shards = [room], planned.size.shards
    is_alone = not replaces and not _is_in_cluster(_fields_of(room[:2]))
    if not is_alone:
        answers += yield from in_parallel(
            [_ask_server(keys.bits(shard)) for shard in range(1, shards)]
        )
    size = planned.shard_bytes(slices)
    # What each server says about itself, what the filter takes there, and what becomes free.
    servers: dict[str, tuple[Fields, int, int]] = {}
    for *infos, length in answers:
        if any(isinstance(info, Exception) for info in infos):
            return
        fields = _fields_of(infos)
        each = allocated(size) if fields.get("mem_allocator", "").startswith("jemalloc") else size
        run_id = fields.get("run_id", "")
        _, wanted, freed = servers.get(run_id, (fields, 0, 0))
        wanted += each * (shards if is_alone else 1)
        servers[run_id] = fields, wanted, freed + (length if isinstance(length, int) else 0)
    for server in servers.values():
        _check_server(keys, planned, server)


def masters_of_a_key(replication: Mapping[str, str], crdt: object) -> str | None:
    """Return what a server is where several masters take writes to one key; None where one does.

    Args:
        replication: The fields of INFO replication.
        crdt: The reply to COMMAND INFO CRDT.CONFIG.

    >>> masters_of_a_key({"role": "active-replica"}, [None])
    'a KeyDB active replica'
    """
    if isinstance(crdt, list) and any(crdt):
        return "a Redis Enterprise Active-Active database"
    if replication.get("role") == "active-replica":
        return "a KeyDB active replica"
    return None


def _ask_server(key: str, first: tuple[bytes, ...] = ()) -> Core[Replies]:
    """Return the replies to some commands, those to INFO, and the length of a string."""
    commands = (*first, *_ROOM, encode_command("STRLEN", key))
    try:
        return (yield from deliver(Request(key, commands), repeatable=True))
    except ConnectionLost as lost:
        raise lost.cause from None


def _fields_of(texts: Sequence[object]) -> Fields:
    """Return the fields of replies to INFO; none of one that is an error."""
    known = [text for text in texts if isinstance(text, (bytes, bytearray))]
    lines = (line for text in known for line in text.decode(errors="replace").splitlines())
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _is_in_cluster(fields: Fields) -> bool:
    return "cluster" in (fields.get("redis_mode"), fields.get("server_mode"))


def _check_server(keys: FilterKeys, planned: Descriptor, server: tuple[Fields, int, int]) -> None:
    fields, wanted, freed = server
    used, total = _number(fields, "used_memory"), _number(fields, "total_system_memory")
    limit, policy = _number(fields, "maxmemory"), fields.get("maxmemory_policy", "noeviction")
    bounds: list[tuple[int, str]] = []
    if limit:
        counted = used - _number(fields, "mem_not_counted_for_evict")
        # With another policy what else is there gives way, as far as it may be evicted, which
        # cannot be seen.
        free = limit - counted if policy == "noeviction" else limit
        bounds.append((free, f"maxmemory is {bytes_text(limit)}"))
    if total:
        bounds.append((total - used, f"its machine has {bytes_text(total)}"))
    if not bounds:
        return
    free, why = min(bounds)
    free = max(0, free + freed)
    if wanted > free:
        where = "a server of the cluster" if _is_in_cluster(fields) else "its server"
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


def _number(fields: Fields, field: str) -> int:
    text = fields.get(field, "")
    return int(text) if text.isdigit() else 0


def allocated(size: int) -> int:
    """Return the bytes that jemalloc takes for a large string; it has four sizes a doubling.

    >>> allocated(5 * 2**20) / 2**20
    6.0
    """
    if size <= _SMALL:
        return size
    size += _STRING_HEADER
    step = 1 << ((size - 1).bit_length() - 3)
    return -(-size // step) * step
