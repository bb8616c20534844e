"""Pictures of results: SVG, for light and for dark pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
OURS, OTHERS = (
    ("#2a78d6", "#3987e5"),
    (
        ("#eb6834", "#d95926"),
        ("#1baf7a", "#199e70"),
        ("#8a63c9", "#9085e9"),
        ("#b8860b", "#c98500"),
    ),
)
INK, GRID = ("#333333", "#d0d0d0"), ("#dddddd", "#3d444d")
MARKS = "osD^v"
SIZE = (7.2, 3.6)
THEMES = ("light", "dark")


def draw(found: Mapping[str, Result], out: Path) -> Iterator[Path]:
    out.mkdir(parents=True, exist_ok=True)
    for name, (suite, width, paint) in _PAINTERS.items():
        if suite not in found:
            continue
        rows = rows_of(found[suite])
        for theme, word in enumerate(THEMES):
            # Else each run would name the parts of a picture anew.
            with mpl.rc_context({"svg.hashsalt": name, **_style(theme)}):
                figure, axes = plt.subplots(
                    1, width, figsize=SIZE, layout="constrained", squeeze=False
                )
                if paint(rows, axes[0], theme):
                    path = out / f"{PICTURES[name][0]}-{word}.svg"
                    figure.savefig(path, transparent=True, metadata={"Date": None})
                    yield path
                plt.close(figure)


def _style(theme: int) -> Any:
    ink: dict[str, Any] = dict.fromkeys(
        ("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK[theme]
    )
    return {
        **ink,
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


def _lines(axes: Axes, rows: Sequence[Row], over: tuple[str, str], names: str, theme: int) -> bool:
    """Draw a line for each contender: through the medians of a figure, at a place."""
    figure, x = over
    drawn = False
    for number, name in enumerate(names.split()):
        mine = sorted((row for row in rows if row.name == name), key=lambda row: row.at[x])
        points = [(row.at[x], row.median(figure)) for row in mine if row.median(figure)]
        if points:
            ours = mine[0].title.startswith("bloomlock")
            color = OURS[theme] if ours and not number else OTHERS[(number - 1) % 4][theme]
            axes.plot(
                *zip(*points, strict=True), color=color, marker=MARKS[number % len(MARKS)],
                label=mine[0].title, linewidth=2.4 if ours else 1.6, zorder=3 if ours else 2,
                linestyle="--" if ours and number else "-",
            )  # fmt: skip
            drawn = True
    return drawn


def _scale(axis: Any, kind: str, ticks: Sequence[float], form: Callable[[float], str]) -> None:
    getattr(axis.axes, f"set_{axis.axis_name}scale")(kind)
    axis.set_ticks(list(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: form(value)))


def _short(value: float) -> str:
    """Write a number as an axis has it.

    >>> _short(0.5), _short(10), _short(2_000), _short(3_000_000)
    ('0.5', '10', '2k', '3M')
    """
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _batch(rows: Sequence[Row], axes: Sequence[Axes], theme: int) -> bool:
    mine = [
        row for row in rows if row.table == "add_many: new items" and row.at["capacity"] == CAPACITY
    ]
    (one,) = axes
    names = "atomic exact bf sadd native"
    drawn = _lines(one, mine, ("rate", "batch"), names, theme)
    _scale(one.xaxis, "log", sorted({row.at["batch"] for row in mine}), _short)
    _scale(one.yaxis, "log", (1e3, 1e4, 1e5, 1e6), _short)
    one.set(xlabel="items in a call", ylabel="items a second")
    one.legend(ncols=1, fontsize=9)
    return drawn


def _memory(rows: Sequence[Row], axes: Sequence[Axes], theme: int) -> bool:
    mine = [row for row in rows if row.part == "bits" and row.at["rate"] == ERROR_RATE]
    for row in mine:
        row.figures["mb"] = [each * row.at["items"] / 1e6 for each in row.figures["bytes"]]
    (one,) = axes
    drawn = _lines(one, mine, ("mb", "items"), "atomic sadd bf memory", theme)
    _scale(one.xaxis, "log", sorted({row.at["items"] for row in mine}), _short)
    _scale(one.yaxis, "log", (0.1, 1, 10, 100, 1000), _short)
    one.set(xlabel="items", ylabel="MB on the server")
    one.legend()
    return drawn


def _errors(rows: Sequence[Row], axes: Sequence[Axes], theme: int) -> bool:
    mine = [row for row in rows if row.part == "fills"]
    (one,) = axes
    drawn = _lines(one, mine, ("errors", "fill"), "atomic memory bf", theme)
    one.axhline(1e-3, color=INK[theme], linewidth=1, linestyle=":", zorder=1)
    one.annotate("asked for", (26, 1.15e-3), fontsize=9)
    _scale(one.xaxis, "linear", sorted({row.at["fill"] for row in mine}), lambda x: f"{x:g} %")
    _scale(one.yaxis, "log", (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1), lambda y: f"{y:g}")
    one.set(xlabel="items over capacity", ylabel="false positives")
    one.legend(loc="lower right")
    return drawn


def _locks(rows: Sequence[Row], axes: Sequence[Axes], theme: int) -> bool:
    mine = [row for row in rows if not row.at["hold"] and "ping" not in row.name]
    names = "Lock redis-py python-redis-lock redis-py-1ms"
    drawn = True
    for one, figure, label in zip(
        axes, ("rate", "p99"), ("grants a second", "99th percentile of the wait, ms"), strict=True
    ):
        drawn = _lines(one, mine, (figure, "clients"), names, theme) and drawn
        clients = sorted({row.at["clients"] for row in mine})
        _scale(one.xaxis, "log", clients, _short)
        one.set(xlabel="clients on one lock", ylabel=label)
    axes[0].set_ylim(bottom=0)
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    _scale(axes[1].yaxis, "log", (0.1, 1, 10, 100, 1000), _short)
    axes[0].legend(fontsize=8)
    return drawn and len({row.at["clients"] for row in mine}) > 1


def _scrapy(rows: Sequence[Row], axes: Sequence[Axes], theme: int) -> bool:
    mine = [row for row in rows if row.part == "rates"]
    (one,) = axes
    names = "addon dupefilter in-memory scrapy-redis scrapy-redis-bloomfilter"
    drawn = _lines(one, mine, ("rate", "ms"), names, theme)
    _scale(one.xaxis, "linear", sorted({row.at["ms"] for row in mine}), lambda x: f"{x:g} ms")
    one.set(xlabel="round trip to the server", ylabel="pages a second", ylim=(0, None))
    one.legend(fontsize=9)
    return drawn


_PAINTERS: dict[str, tuple[str, int, Callable[[Sequence[Row], Sequence[Axes], int], bool]]] = {
    "batch": ("batch", 1, _batch),
    "memory": ("memory", 1, _memory),
    "errors": ("memory", 1, _errors),
    "locks": ("locks", 2, _locks),
    "scrapy": ("scrapy", 1, _scrapy),
}
