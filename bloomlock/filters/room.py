"""Whether the servers have the memory that a new filter takes.

A server takes the memory of a shard at once, also where that is more than it may have. Above
`maxmemory` it then refuses the writes of all its clients; above the memory of its machine the
system kills a process. The look is no reservation: of two filters that are created at the same
time each may fit, and both not.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bloomlock.descriptor import HEADER_BYTES
from bloomlock.effects import ConnectionLost, Core, FreeMemory, Request, deliver, encode_command
from bloomlock.errors import ConfigurationError
from bloomlock.sizing import bytes_text

if TYPE_CHECKING:
    from bloomlock.descriptor import Descriptor
    from bloomlock.keys import FilterKeys

logger = logging.getLogger("bloomlock")

_INFO = (encode_command("INFO", "server"), encode_command("INFO", "memory"))
_SMALL = 16 * 1024
_STRING_HEADER = 17


@dataclass(slots=True)
class _Server:
    """What one server says about itself, and what the filter takes there.

    Attributes:
        told: The fields of INFO.
        wanted: Bytes the filter's shards take.
        replaced: Bytes of what is there in their places.
    """

    told: dict[str, str]
    wanted: int = 0
    replaced: int = 0

    @property
    def is_in_cluster(self) -> bool:
        return "cluster" in (self.told.get("redis_mode"), self.told.get("server_mode"))


def check_room(keys: FilterKeys, planned: Descriptor, *, replaces: bool) -> Core[None]:
    """Refuse to create a filter that the memory of its servers has no room for.

    Args:
        keys: The filter's keys.
        planned: What is to be created.
        replaces: Whether there may be shards of an earlier filter, whose memory becomes free.

    Raises:
        ConfigurationError: If there is no room; the sentence has both figures.

    Cost: one round trip; in a cluster, or if something is replaced, one for each shard. A server
    that does not answer INFO is taken to have room.
    """
    servers: dict[str, _Server] = {}
    size = HEADER_BYTES + (planned.size.shard_bits + 7) // 8
    for shard in range(planned.size.shards):
        key = keys.bits(shard)
        told, length = yield from _ask(key)
        if told is None:
            return
        server = servers.setdefault(told.get("run_id", ""), _Server(told))
        each = allocated(size) if told.get("mem_allocator", "").startswith("jemalloc") else size
        server.replaced += length
        if shard == 0 and not replaces and not server.is_in_cluster:
            server.wanted = each * planned.size.shards
            break
        server.wanted += each
    local = yield FreeMemory(keys.meta)
    for server in servers.values():
        _check_server(keys, planned, server, local)


def _ask(key: str) -> Core[tuple[dict[str, str] | None, int]]:
    """Return the fields of INFO, None where it is refused, and the length of a string."""
    request = Request(key, [*_INFO, encode_command("STRLEN", key)])
    try:
        *texts, length = yield from deliver(request, repeatable=True)
    except ConnectionLost as lost:
        raise lost.cause from None
    if any(isinstance(text, Exception) for text in texts):
        return None, 0
    lines = (line for text in texts for line in bytes(text).decode(errors="replace").splitlines())
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    return told, length if isinstance(length, int) else 0


def _check_server(
    keys: FilterKeys, planned: Descriptor, server: _Server, local: int | None
) -> None:
    told = server.told
    used, total = _number(told, "used_memory"), _number(told, "total_system_memory")
    limit, policy = _number(told, "maxmemory"), told.get("maxmemory_policy", "noeviction")
    bounds: list[tuple[int, str]] = []
    if limit and policy == "noeviction":
        counted = used - _number(told, "mem_not_counted_for_evict")
        bounds.append((limit - counted, f"maxmemory is {bytes_text(limit)}"))
    elif limit:
        # What else is there gives way, as far as it may be evicted, which nobody can see.
        bounds.append((limit, f"maxmemory is {bytes_text(limit)}"))
    if total:
        bounds.append((total - used, f"its machine has {bytes_text(total)}"))
    if local is not None:
        bounds.append((local, "the rest of this machine's memory is in use"))
    if not bounds:
        return
    free, why = min(bounds)
    free = max(0, free + server.replaced)
    if server.wanted > free:
        where = "a server of the cluster" if server.is_in_cluster else "its server"
        raise ConfigurationError(
            f"capacity is {planned.capacity} at error_rate {planned.error_rate:g}: filter "
            f"{keys.name!r} takes {bytes_text(server.wanted)} of memory and {where} has "
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


def _number(told: dict[str, str], field: str) -> int:
    text = told.get(field, "")
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
