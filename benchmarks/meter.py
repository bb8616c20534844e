"""What a slice cost the server, by its own counters."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis


READINGS = 9


@dataclass(frozen=True, slots=True)
class Cost:
    """Counters of the server.

    Attributes:
        busy: Seconds of its processor time.
        received: Bytes it read from clients.
        sent: Bytes it wrote to clients.
    """

    busy: float
    received: float
    sent: float

    def since(self, earlier: Cost) -> Cost:
        """Return the difference."""
        pairs = [(getattr(self, f.name), getattr(earlier, f.name)) for f in fields(self)]
        return Cost(*(now - then for now, then in pairs))


class Meter:
    """Reads the counters, and takes off what reading them costs.

    Args:
        client: A client for this only.
    """

    def __init__(self, client: redis.Redis) -> None:
        """Measure what one reading costs."""
        self._client = client
        readings = [self._read() for _ in range(READINGS + 1)]
        differences = [b.since(a) for a, b in itertools.pairwise(readings)]
        self._own = Cost(
            *(median(getattr(cost, f.name) for cost in differences) for f in fields(Cost))
        )
        self._last = readings[-1]

    def start(self) -> None:
        """Begin to count."""
        self._last = self._read()

    def stop(self) -> Cost:
        """Return what the server did since `start`; at least 0 of everything."""
        spent = self._read().since(self._last).since(self._own)
        return Cost(*(max(0.0, getattr(spent, f.name)) for f in fields(spent)))

    def _read(self) -> Cost:
        # Two sections one after the other: Redis 6.2 does not take them in one command.
        cpu: Any = self._client.info("cpu")
        stats: Any = self._client.info("stats")
        return Cost(
            cpu["used_cpu_user"] + cpu["used_cpu_sys"],
            stats["total_net_input_bytes"],
            stats["total_net_output_bytes"],
        )


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of the server at one moment, without what reading them costs.

    Attributes:
        round_trips: Times it read something from a client.
        commands: Commands it ran, with those that scripts ran inside.
        busy: Seconds of processor time.
    """

    round_trips: int
    commands: int
    busy: float

    def since(self, earlier: Counters) -> Counters:
        """Return the difference; one reading lies in between."""
        return Counters(
            self.round_trips - earlier.round_trips - 1,
            self.commands - earlier.commands,
            self.busy - earlier.busy,
        )


def counters(client: redis.Redis) -> Counters:
    """Read them, in one round trip."""
    fields: Any = client.info("all")
    return Counters(
        round_trips=fields["total_reads_processed"],
        commands=sum(
            entry["calls"]
            for name, entry in fields.items()
            if name.startswith("cmdstat_") and name != "cmdstat_info"
        ),
        busy=fields["used_cpu_user"] + fields["used_cpu_sys"],
    )
