"""What the server did during a slice, by its own counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis


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
    told: Any = client.info("all")
    return Counters(
        round_trips=told["total_reads_processed"],
        commands=sum(
            entry["calls"]
            for name, entry in told.items()
            if name.startswith("cmdstat_") and name != "cmdstat_info"
        ),
        busy=told["used_cpu_user"] + told["used_cpu_sys"],
    )
