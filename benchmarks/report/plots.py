"""Pictures of how cost grows: with the batch, the filter, the clients and the round trip."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from benchmarks.figures import summarize

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram.

    Attributes:
        title: Above it.
        along: Attribute of the rows that is the horizontal axis.
        label: What stands below it.
        wanted: What the rows have that are drawn, as attribute and value.
        without: Contenders that are left out, for the others to be seen.
        rate: Draw items per second; else microseconds for an item.
        linear: The horizontal axis is not logarithmic.
    """

    title: str
    along: str
    label: str
    wanted: dict[str, Any]
    without: tuple[str, ...] = ()
    rate: bool = False
    linear: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """Diagrams beside each other.

    Attributes:
        suite: Whose results they show; also the name of the file.
        about: A sentence for those who do not see it.
        panels: The diagrams.
    """

    suite: str
    about: str
    panels: tuple[Panel, ...] = field(default_factory=tuple)


def _of(operation: str, workload: str = "new") -> dict[str, Any]:
    return {"operation": operation, "workload": workload}


_CROWD = ("transaction", "pipeline", "lock", "lua-blocked")
PICTURES = (
    Picture(
        "batch",
        "Cost of an item against the items in a call",
        (
            Panel(
                "add_many",
                "batch",
                "items in a call",
                _of("add_many") | {"error_rate": 1e-6},
                _CROWD,
            ),
            Panel("update", "batch", "items in a call", _of("update"), ("ping", *_CROWD)),
        ),
    ),
    Picture(
        "sizes",
        "Cost of an item against the size of the filter",
        (
            Panel(
                "add_many, 1,000 in a call", "capacity", "filter for", _of("add_many"), ("ping",)
            ),
            Panel(
                "exists_many, 1,000 in a call",
                "capacity",
                "filter for",
                _of("exists_many", "half"),
                ("ping",),
            ),
        ),
    ),
    Picture(
        "clients",
        "Items per second against the number of client processes",
        (
            Panel("add", "processes", "client processes", _of("add"), rate=True, linear=True),
            Panel(
                "add_many, 1,000 in a call",
                "processes",
                "client processes",
                _of("add_many"),
                ("ping",),
                rate=True,
                linear=True,
            ),
        ),
    ),
    Picture(
        "rtt",
        "Cost of an item against the round trip",
        (
            Panel("add, new items", "round_trip_ms", "round trip, ms", _of("add"), linear=True),
            Panel(
                "add, 90 % seen",
                "round_trip_ms",
                "round trip, ms",
                _of("add", "zipf"),
                linear=True,
            ),
            Panel(
                "1,000 tasks of asyncio",
                "round_trip_ms",
                "round trip, ms",
                _of("tasks"),
                linear=True,
            ),
        ),
    ),
    Picture(
        "tasks",
        "Cost of an item against the number of tasks",
        (Panel("tasks of asyncio", "tasks", "tasks", _of("tasks")),),
    ),
)


def draw(picture: Picture, rows: list[Row], file: Path) -> None:
    """Draw a picture as SVG; the same results give the same file.

    Args:
        picture: Which.
        rows: Of its suite.
        file: Where it goes.
    """
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and only a report draws

    mpl.use("svg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice above

    settings: Any = {"svg.hashsalt": "bloomlock", "font.size": 8, "axes.grid": True}
    with mpl.rc_context(settings | {"grid.alpha": 0.3, "svg.fonttype": "none"}):
        count = len(picture.panels)
        figure, axes = plt.subplots(1, count, figsize=(4.6 * count, 5.2), squeeze=False)
        styles = _styles(rows)
        lines: dict[str, Any] = {}
        for panel, axis in zip(picture.panels, axes[0], strict=True):
            lines |= _draw(axis, panel, rows, styles)
        below = figure.legend(
            lines.values(), lines, loc="lower center", ncols=2 * count, fontsize=7, frameon=False
        )
        figure.tight_layout(rect=(0, 0.035 * -(-len(lines) // (2 * count)) + 0.02, 1, 1))
        figure.savefig(file, format="svg", metadata={"Date": None}, bbox_extra_artists=(below,))
        plt.close(figure)


def _styles(rows: list[Row]) -> dict[str, tuple[Any, str]]:
    """Return a colour and a line for each contender: solid lines are ours."""
    from matplotlib import colormaps  # noqa: PLC0415 - as above

    colours = colormaps["tab20"]
    names = dict.fromkeys((row["contender"], row["title"]) for row in rows)
    # The dark half of the map first, then the light one.
    order = [*range(0, 20, 2), *range(1, 20, 2)]
    return {
        name: (colours(order[number % 20]), "-" if title.startswith("bloomlock") else "--")
        for number, (name, title) in enumerate(names)
    }


def _draw(
    axis: Axes, panel: Panel, rows: list[Row], styles: dict[str, tuple[Any, str]]
) -> dict[str, Any]:
    """Draw a diagram; return its lines by their titles."""
    drawn: dict[str, list[Row]] = {}
    for row in rows:
        fits = all(row[name] == value for name, value in panel.wanted.items())
        if fits and row["contender"] not in panel.without:
            drawn.setdefault(row["contender"], []).append(row)
    lines = {}
    for name, points in drawn.items():
        points.sort(key=lambda row: row[panel.along])
        places = [row[panel.along] for row in points]
        found = [summarize(_figures(panel, row)) for row in points]
        colour, style = styles[name]
        medians = [summary.median for summary in found]
        (line,) = axis.plot(places, medians, style, color=colour, marker=".")
        lines[points[0]["title"]] = line
        low, high = [summary.low for summary in found], [summary.high for summary in found]
        axis.fill_between(places, low, high, color=colour, alpha=0.1, linewidth=0)
    _label(axis, panel, sorted({row[panel.along] for row in chain(*drawn.values())}))
    return lines


def _label(axis: Axes, panel: Panel, places: list[float]) -> None:
    from matplotlib.ticker import (  # noqa: PLC0415 - as above
        EngFormatter,
        FuncFormatter,
        LogLocator,
        NullFormatter,
        NullLocator,
    )

    short = EngFormatter(sep="")
    axis.set_xscale("linear" if panel.linear else "log")
    names = [f"{place:g}" if place < 1 else short(place) for place in places]
    axis.set_xticks(places, names, rotation=0 if panel.linear else 45)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set(title=panel.title, xlabel=panel.label)
    axis.set_ylabel("items/s" if panel.rate else "µs/item")


def _figures(panel: Panel, row: Row) -> list[float]:
    rates: list[float] = row["rates"]
    return rates if panel.rate else [1e6 / rate for rate in rates]
