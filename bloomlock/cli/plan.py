"""`bloomlock plan`: what a filter takes, before there is any. It needs no server."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

import bloomlock

from .errors import Failure
from .filters import size_text
from .options import DEFAULT_ERROR_RATE, duration, examples, number

if TYPE_CHECKING:
    from bloomlock import Plan

_GIB = 2**30
_MICROSECONDS = 1e6

WORKLOADS = {"irlbot": {"items": 41_000_000_000, "rate": 111_200.0}}
"""IRLbot, the largest crawl that was described: 394e9 links checked in 41 days, 41e9 of them unique
(https://doi.org/10.1145/1367497.1367556)."""


def _whole(text: str) -> int:
    """Return a whole number, also one written as 41e9."""
    value = number(float)(text)
    if not isinstance(value, float) or not value.is_integer() or value < 1:
        raise Failure(f"--items must be a whole number from 1 on, such as 41e9, not {text}")
    return int(value)


def _positive(name: str, value: Any) -> float | None:
    if value is not None and not (isinstance(value, float) and 0 < value < math.inf):
        raise Failure(f"{name} must be a number greater than 0, not {value}")
    return value


@click.command(
    "plan",
    epilog=examples(
        "bloomlock plan --items 50e6",
        "bloomlock plan --items 41e9 --rate 111200 --server-memory 64",
        "bloomlock plan --like irlbot --server-memory 64 --json",
        "bloomlock plan --items 200e6 --window 7d",
    ),
)
@click.option("--items", type=_whole, metavar="N", help="Different items, such as 41e9.")
@click.option(
    "--error-rate",
    type=number(float),
    default=str(DEFAULT_ERROR_RATE),
    show_default=True,
    metavar="P",
    help="Share of new items taken for seen ones when it is full.",
)
@click.option("--rate", type=number(float), metavar="N", help="Items checked in a second.")
@click.option(
    "--batch-size",
    type=number(int),
    default="1000",
    show_default=True,
    metavar="N",
    help="Items of a batch.",
)
@click.option(
    "--server-memory", type=number(float), metavar="GIB", help="GiB of one server for the filter."
)
@click.option(
    "--window",
    type=duration,
    metavar="TIME",
    help="Items are those of this time, and are forgotten then: seconds, or a number with m, h, d "
    "or w.",
)
@click.option("--slices", type=number(int), metavar="[6|14|30]", help="As of a new filter.")
@click.option("--optimize", metavar="[memory|balanced|speed]", help="As of a new filter.")
@click.option("--num-hashes", type=number(int), metavar="K", help="Hash functions of an item.")
@click.option("--shards", type=number(int), metavar="N", help="Redis strings to spread over.")
@click.option("--like", metavar=f"[{'|'.join(WORKLOADS)}]", help="Items and rate of a known crawl.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def plan_command(
    *, rate: Any, server_memory: Any, like: str | None, as_json: bool, items: Any, **shape: Any
) -> None:
    """Say what a filter takes: memory, shards, servers, round trips, the servers' time.

    Sizes follow from the formulas that filters are made by, times from measured constants.
    """
    if like is not None and like not in WORKLOADS:
        raise Failure(f"--like must be {' or '.join(WORKLOADS)}, not {like}")
    known = WORKLOADS[like] if like is not None else {}
    items = known.get("items") if items is None else items
    rate = known.get("rate") if rate is None else rate
    if items is None:
        raise Failure("give --items, or --like a known crawl")
    rate, gib = _positive("--rate", rate), _positive("--server-memory", server_memory)
    in_bytes = None if gib is None else gib * _GIB
    made = bloomlock.plan(items, **shape, items_per_s=rate, server_bytes=in_bytes)
    if as_json:
        click.echo(json.dumps(asdict(made) | {"servers": made.servers}, indent=2))
        return
    rows = _describe(made, rate)
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        click.echo(f"{label:<{width}}  {value}")


def _describe(made: Plan, rate: float | None) -> list[tuple[str, str]]:
    rows = [
        ("items", f"{made.capacity}"),
        ("error rate", f"{made.error_rate:g}"),
        *([("window", f"{_days(made.window_s)} in {made.slices} slices")] if made.window_s else []),
        ("hash functions", f"{made.num_hashes}"),
        ("bits", f"{made.num_bits} ({made.bits_per_item:.1f} an item)"),
        ("memory", size_text(made.memory_bytes)),
        ("shards", f"{made.shards} of {size_text(made.shard_bytes)}"),
        ("round trips", "1 for an item, 1 for a batch on one server, servers at once"),
        ("server time, one by one", _time(made.single_server_s)),
        ("server time, in batches", _time(made.batch_server_s)),
    ]
    if made.servers_for_memory is not None:
        rows.append(("servers for the memory", f"{made.servers_for_memory}"))
    if made.servers_for_rate is not None:
        busy = (rate or 0) * made.batch_server_s / made.servers
        rows.append(("servers for the rate", f"{made.servers_for_rate}, in batches"))
        rows.append(("each of the servers busy", f"{busy:.0%}"))
    return [*rows, ("servers", f"{made.servers}")]


def _days(seconds: float) -> str:
    return str(timedelta(seconds=seconds))


def _time(seconds: float) -> str:
    return f"{seconds * _MICROSECONDS:.1f} us an item, {1 / seconds:,.0f} items/s on one core"
