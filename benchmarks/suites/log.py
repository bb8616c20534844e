"""What an item adds to the append-only file, which is what a replica receives as well.

A script is logged as the commands it ran, or as one that calls it; a bitmap is logged whole.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import contenders as c
from benchmarks import show
from benchmarks.jobs import Job
from benchmarks.place import Place, connect, forget, sort_out
from benchmarks.tables import number
from benchmarks.team import assembled

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis
    from rich.table import Table

    from benchmarks.contenders import Entry
    from benchmarks.options import Options

ABOUT = "bytes that an item adds to the append-only file"
ENTRIES = (c.ATOMIC, c.LUA, c.SADD, c.EXACT, c.REDIS_BLOOM)
SIZES = {"add": 1, "add_many": 1000}
SECONDS = 60.0


@dataclass(slots=True)
class Row:
    """Bytes of the log for each new item, by one `add` and in a batch of 1,000."""

    contender: str
    title: str
    add: float | None = None
    add_many: float | None = None


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure; return what was measured as plain data."""
    there, missing = sort_out(c.choose(ENTRIES, options.contenders), url)
    items = options.offered(2000)
    with connect(url) as client, show.progress(len(there)) as step:
        found: Any = client.config_get("appendonly")
        client.config_set("appendonly", "yes")
        try:
            _settled(client)
            rows = []
            for entry in there:
                step(entry.name)
                rows.append(_row(client, entry, items, url, prefix))
                forget(client, prefix)
        finally:
            client.config_set("appendonly", found["appendonly"])
    return {"missing": missing, "rows": [asdict(row) for row in rows]}


def _row(client: redis.Redis, entry: Entry, items: int, url: str, prefix: str) -> Row:
    row = Row(entry.name, entry.title)
    place = Place(url, prefix, f"log-{entry.name}", max(1_000_000, items), 1e-6)
    with assembled([(entry, place)], 1) as (team,):
        for operation, batch in SIZES.items():
            if operation in entry.operations:
                team.run([Job("fill", operation, (("warm-up", 20),))])  # type: ignore[arg-type]
                before = _settled(client)
                spans = ((operation, items),)
                team.run([Job("fill", operation, spans, min(batch, items))])  # type: ignore[arg-type]
                setattr(row, operation, round((_settled(client) - before) / items, 1))
    return row


def _settled(client: redis.Redis) -> int:
    """Return the size of the log once everything is in it."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        state: Any = client.info("persistence")
        rewriting = state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"]
        if not rewriting and not state.get("aof_buffer_length"):
            return int(state["aof_current_size"])
        time.sleep(0.01)
    raise RuntimeError(f"the append-only file is not written after {SECONDS:g} s")


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make the table."""
    rows = [Row(**row) for row in result["rows"]]
    lines = [[row.title, _bytes(row.add), _bytes(row.add_many)] for row in rows]
    absent = [[each["title"], "not available", ""] for each in result["missing"]]
    columns = ["", "add", "add_many, 1,000 in a call"]
    yield show.table("bytes in the log for a new item", columns, lines + absent)


def _bytes(value: float | None) -> str:
    return "" if value is None else number(value)
