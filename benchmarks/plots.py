"""Pictures of results: SVG, for light and for dark pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl

from .engine import CAPACITY, ERROR_RATE
from .page import PICTURES
from .results import Row, rows_of

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, NullLocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from .results import Result

# Ours is blue and thick, in both themes; peers keep a color each, told apart by their marks too.
OURS = ("#2a78d6", "#3987e5")
OTHERS = (
    ("#eb6834", "#d95926"),
    ("#1baf7a", "#199e70"),
    ("#8a63c9", "#9085e9"),
    ("#b8860b", "#c98500"),
)
INK, GRID = ("#333333", "#d0d0d0"), ("#dddddd", "#3d444d")
MARKS = "osD^v"
SIZE = (7.2, 3.6)
THEMES = ("light", "dark")


class Axis(NamedTuple):
    figure: str  # of a row: over x its place, over y the median
    label: str
    form: str = "{}"
    ticks: Sequence[float] = ()  # of a logarithmic axis of y


class Picture(NamedTuple):
    suite: str
    rows: Callable[[Row], bool]
    names: str  # of contenders
    x: Axis
    y: Sequence[Axis]  # a panel for each


def _decades(first: int, last: int) -> list[float]:
    return [10.0**power for power in range(first, last + 1)]


_LOGARITHMIC = {"batch", "items", "clients"}
_DRAWN = {
    "batch": Picture(
        "batch",
        lambda row: row.table == "add_many: new items" and row.at["capacity"] == CAPACITY,
        "atomic exact bf sadd native",
        Axis("batch", "items in a call"),
        [Axis("rate", "items a second", ticks=_decades(3, 6))],
    ),
    "memory": Picture(
        "memory",
        lambda row: row.part == "bits" and row.at["rate"] == ERROR_RATE,
        "atomic sadd bf memory",
        Axis("items", "items"),
        [Axis("mb", "MB on the server", ticks=_decades(-1, 3))],
    ),
    "errors": Picture(
        "memory",
        lambda row: row.part == "fills",
        "atomic memory bf",
        Axis("fill", "items over capacity", "{} %"),
        [Axis("errors", "false positives, at 0.001", ticks=_decades(-6, -1))],
    ),
    "locks": Picture(
        "locks",
        lambda row: not row.at["hold"] and "ping" not in row.name,
        "Lock redis-py python-redis-lock redis-py-1ms",
        Axis("clients", "clients on one lock"),
        [
            Axis("rate", "grants a second"),
            Axis("p99", "99th percentile of the wait, ms", ticks=_decades(-1, 3)),
        ],
    ),
    "scrapy": Picture(
        "scrapy",
        lambda row: row.part == "rates",
        "addon dupefilter in-memory scrapy-redis scrapy-redis-bloomfilter",
        Axis("ms", "round trip to the server", "{} ms"),
        [Axis("rate", "pages a second")],
    ),
}


def draw(found: Mapping[str, Result], out: Path) -> Iterator[Path]:
    for name, picture in _DRAWN.items():
        rows = [row for row in rows_of(found[picture.suite]) if picture.rows(row)]
        for row in rows:
            if "bytes" in row.figures:
                row.figures["mb"] = [each * row.at["items"] / 1e6 for each in row.figures["bytes"]]
        for theme, word in enumerate(THEMES):
            # Without the salt each run would name the parts of a picture in another way.
            with mpl.rc_context({"svg.hashsalt": name, **_style(theme)}):
                figure, panels = plt.subplots(
                    1, len(picture.y), figsize=SIZE, layout="constrained", squeeze=False
                )
                for axes, y in zip(panels[0], picture.y, strict=True):
                    _panel(axes, picture, rows, y, theme)
                panels[0][0].legend(fontsize=9)
                path = out / f"{PICTURES[name][0]}-{word}.svg"
                figure.savefig(path, transparent=True, metadata={"Date": None})
                plt.close(figure)
                yield path


def _style(theme: int) -> Any:
    inked = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(inked, INK[theme]),
        "svg.fonttype": "none",
        "axes.edgecolor": GRID[theme],
        "grid.color": GRID[theme],
        "axes.grid": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 10,
        "legend.frameon": False,
        "lines.markersize": 5,
    }


def _panel(axes: Axes, picture: Picture, rows: Sequence[Row], y: Axis, theme: int) -> None:
    """Draw a line for each contender, through the medians of a figure."""
    x = picture.x
    for number, name in enumerate(picture.names.split()):
        mine = sorted(
            (row for row in rows if row.name == name and row.median(y.figure)),
            key=lambda row: row.at[x.figure],
        )
        if not mine:
            continue
        ours = mine[0].title.startswith("bloomlock")
        axes.plot(
            [row.at[x.figure] for row in mine],
            [row.median(y.figure) or 0 for row in mine],
            color=OURS[theme] if ours and not number else OTHERS[(number - 1) % 4][theme],
            marker=MARKS[number % len(MARKS)],
            label=mine[0].title,
            linewidth=2.4 if ours else 1.6,
            linestyle="--" if ours and number else "-",
            zorder=3 if ours else 2,
        )
    places = sorted({row.at[x.figure] for row in rows})
    _scale(axes.xaxis, x, places, is_log=x.figure in _LOGARITHMIC)
    _scale(axes.yaxis, y, y.ticks, is_log=bool(y.ticks))


def _scale(axis: Any, about: Axis, ticks: Sequence[float], *, is_log: bool) -> None:
    letter = axis.axis_name
    if is_log:
        axis.axes.set(**{f"{letter}scale": "log"})
        axis.set_minor_locator(NullLocator())
    elif letter == "y":
        axis.axes.set_ylim(bottom=0)
    if ticks:
        axis.set_ticks(list(ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: about.form.format(_short(value))))
    axis.axes.set(**{f"{letter}label": about.label})


def _short(value: float) -> str:
    """Write a number as an axis has it.

    >>> _short(0.5), _short(10), _short(2_000), _short(3_000_000)
    ('0.5', '10', '2k', '3M')
    """
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
