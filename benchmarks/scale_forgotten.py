"""What forgotten items cost: a part of the suite `scale`; see there."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from bloomlock import BloomFilter

from . import show
from .figures import ratios
from .place import Meter, connect
from .scale_parts import Part
from .workloads import fingerprints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from .options import Options

    Row = dict[str, Any]

BATCH = 1000
SINGLE = 300
OPERATIONS = ("exists", "add", "exists_many", "add_many")


def run(options: Options, url: str, prefix: str) -> list[Row]:
    """Forget items of one of two filters, and ask for and add others in both."""
    count = options.items or (50_000 if options.quick else 1_000_000)
    gone, kept = fingerprints("gone", count), fingerprints("kept", count)
    with connect(url) as client:
        never, forgot = (
            BloomFilter(
                name, 4 * count, options.error_rates[0], client=client, prefix=prefix, shards=1
            )
            for name in ("never", "forgot")
        )
        for made in (never, forgot):
            made.update(gone)
            made.update(kept)
        before = forgot.info().memory_bytes
        meter = Meter(client)
        meter.start()
        discarded = sum(forgot.discard_many(gone))
        busy = meter.stop().busy
        first: Row = {
            "operation": "discard_many",
            "items": count,
            "discarded": discarded,
            "server": 1e6 * busy / count,
            "bytes": (forgot.info().memory_bytes - before) / count,
            "left": sum(forgot.exists_many(gone)),
            "lost": count - sum(forgot.exists_many(kept)),
        }
        both = {"never": never, "forgot": forgot}
        slices = options.slices(9, 3)
        rows = [_compare(meter, both, name, kept, slices) for name in OPERATIONS]
        for made in (never, forgot):
            made.delete()
    return [first, *rows]


def _compare(
    meter: Meter, both: dict[str, BloomFilter], operation: str, kept: list[str], slices: int
) -> Row:
    """Measure the server's time for an item; half of what is asked for is there."""
    row: Row = {"operation": operation, "never": [], "forgot": []}
    is_many = operation.endswith("many")
    size = BATCH if is_many else SINGLE
    for repetition in range(slices):
        for name, made in both.items():
            items = fingerprints(f"{operation}/{repetition}", size)
            if operation.startswith("exists"):
                items = [*items[: size // 2], *kept[: size - size // 2]]
            call: Callable[[Any], Any] = getattr(made, operation)
            meter.start()
            for each in [items] if is_many else items:
                call(each)
            row[name].append(1e6 * meter.stop().busy / len(items))
    return row


def tables(rows: list[Row]) -> Iterator[Table]:
    """Make a table of what was forgotten, and one of what others cost then."""
    first, *others = rows
    line = [
        f"{first['discarded']:,}",
        f"{first['bytes']:.1f}",
        f"{first['server']:.2f}",
        f"{first['left']:,}",
        f"{first['lost']:,} of {first['items']:,}",
    ]
    columns = ["forgotten items", "bytes each", "server µs each", "seen still", "others lost"]
    yield show.table("forgetting", columns, [line])
    lines = [
        [
            row["operation"],
            f"{median(row['never']):.2f}",
            f"{median(row['forgot']):.2f}",
            show.ratio(ratios(row["forgot"], row["never"])),
        ]
        for row in others
    ]
    columns = ["", "never forgot: server µs/item", "forgot", "ratio"]
    yield show.table("a filter that forgot beside one that never did", columns, lines)


FORGOTTEN = Part("forgotten", run, tables)
