"""Locks: a cycle of acquire and release alone, and many clients on one lock.

One process is one client. Alone, one process runs short slices of every lock and of bare round
trips in turn, in an order that changes. On one lock, all clients start together and do nothing but
acquire, hold and release until a slice is over; the locks take turns here too, and two of them are
compared within one repetition. Each client notes when it asked, got the lock and released it, on a
clock that all processes share: from that come the waits, the hand-offs from one to the next, and
whether the lock was ever held twice. Locks for asyncio have tasks of one process as their clients;
redis-py's Lock sleeps 0.1 s between two tries by itself, and in one more row 1 ms.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Any

from benchmarks import contenders, show
from benchmarks.contenders import Entry
from benchmarks.figures import percentile, ratios, summarize
from benchmarks.locks_figures import figures, jain
from benchmarks.locks_jobs import Job
from benchmarks.place import Meter, Place, connect, forget
from benchmarks.team import Team, assembled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.table import Table

    from benchmarks.jobs import Answer
    from benchmarks.options import Options
    from benchmarks.place import Cost

ABOUT = "locks: alone, and with 1 to 64 clients on one"

ALONE, PROCESSES, TASKS = "alone", "processes", "tasks"


def _entry(name: str, title: str, *operations: str) -> Entry:
    return Entry(name, title, "", operations=operations or (ALONE, PROCESSES))


ENTRIES = (
    _entry("Lock", "bloomlock Lock"),
    _entry("FairLock", "bloomlock FairLock"),
    _entry("AsyncLock", "bloomlock AsyncLock", TASKS),
    _entry("redis-py", "redis-py Lock"),
    _entry("redis-py-1ms", "redis-py Lock, 1 ms", PROCESSES),
    _entry("redis-py-asyncio", "redis-py asyncio Lock", TASKS),
    _entry("python-redis-lock", "python-redis-lock"),
    _entry("ping", "2 PING by redis-py", ALONE),
    _entry("ping-bytes", "2 PING bytes", ALONE),
)
_SEAT = Entry("locks", "a client", "locks.Locks")
CONTENDED = (8, 0.0)
"""Clients and hold time of the case with the most repetitions: a busy lock and nothing else."""
CROWD = 32
"""With more clients than this a slice takes long, and there are fewer."""
ROUNDS = 4
"""A slice is long enough for each client to hold the lock so often."""
SHORT = 0.3
"""Seconds of a slice with one client: no other disturbs it."""
WARM_UP = 20


@dataclass(slots=True)
class Row:
    """All repetitions of one lock; lists have a figure for each.

    Attributes:
        contender: Its name.
        title: Its title.
        clients: Clients at the same time; 0 is a timed loop with nothing noted.
        hold: Milliseconds for which each holds the lock.
        rates: Cycles (alone) or grants per second.
        wait_p50: Milliseconds from asking to holding, the median grant.
        wait_p99: The same, of the slowest hundredth the fastest.
        wait_max: The slowest grant.
        handoff_p50: Milliseconds from the call of release to the next holder's running.
        handoff_p99: The same.
        handed: Share of the grants that went to one who had been waiting at the release.
        round_trips: For each grant.
        commands: That the server ran for each grant, with those inside scripts.
        server: Microseconds of the server's processor for each grant.
        jain: Jain's index of the grants of the clients.
        twice: Grants that began while another still held the lock, of all repetitions.
        errors: Exceptions by name, of all repetitions.
    """

    contender: str
    title: str
    clients: int = 0
    hold: float = 0.0
    rates: list[float] = field(default_factory=list)
    wait_p50: list[float] = field(default_factory=list)
    wait_p99: list[float] = field(default_factory=list)
    wait_max: list[float] = field(default_factory=list)
    handoff_p50: list[float] = field(default_factory=list)
    handoff_p99: list[float] = field(default_factory=list)
    handed: list[float] = field(default_factory=list)
    round_trips: list[float] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    jain: list[float] = field(default_factory=list)
    twice: int = 0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Scale:
    alone: int
    cycles: int
    repetitions: int
    contended: int
    crowded: int
    clients: tuple[int, ...]
    holds: tuple[float, ...]
    seconds: float


def _scale(options: Options) -> _Scale:
    quick = options.quick
    return _Scale(
        alone=options.repetitions or (12 if quick else 60),
        cycles=options.items or 200,
        repetitions=options.repetitions or (2 if quick else 3),
        contended=options.repetitions or (5 if quick else 9),
        crowded=options.repetitions or 2,
        clients=options.processes or ((1, 8) if quick else (1, 2, 8, 64)),
        holds=options.holds or (0.0, 1.0, 10.0),
        seconds=options.seconds or (0.4 if quick else 0.8),
    )


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure; return what was measured as plain data."""
    scale = _scale(options)
    chosen = contenders.choose(ENTRIES, options.contenders)
    there = [entry for entry in chosen if _installed(entry)]
    rows: dict[tuple[str, int, float], Row] = {}
    place = Place(url, prefix, "lock", 1, 0.5)
    with connect(url) as client, assembled([(_SEAT, place)], max(scale.clients)) as (team,):
        try:
            meter = Meter(client)
            _warm_up(team, there, max(scale.clients))
            slices = [*_alone_slices(there, scale), *_slices(there, scale)]
            with show.progress(len(slices)) as step:
                for entry, clients, hold in slices:
                    step(f"{entry.title} x{clients} {hold:g} ms")
                    key = (entry.name, clients, hold)
                    row = rows.setdefault(key, Row(entry.name, entry.title, clients, hold))
                    _measure(team, meter, row, scale, tasks=TASKS in entry.operations)
        finally:
            for start in ("lock:", "lock-signal:"):  # python-redis-lock puts these before its names
                forget(client, start + prefix)
    return {
        "scale": asdict(scale),
        "missing": [entry.title for entry in chosen if entry not in there],
        "rows": [asdict(row) for row in rows.values()],
    }


def _installed(entry: Entry) -> bool:
    return entry.name != "python-redis-lock" or find_spec("redis_lock") is not None


def _warm_up(team: Team, entries: list[Entry], clients: int) -> None:
    """Let all connect and load their scripts."""
    for entry in entries:
        if PROCESSES in entry.operations:
            team.run([Job("alone", entry.name, cycles=1)] * clients)


def _alone_slices(entries: list[Entry], scale: _Scale) -> Iterator[tuple[Entry, int, float]]:
    order = random.Random(0)
    alone = [(entry, 0, 0.0) for entry in entries if ALONE in entry.operations]
    for _ in range(scale.alone):
        order.shuffle(alone)
        yield from alone


def _slices(entries: list[Entry], scale: _Scale) -> Iterator[tuple[Entry, int, float]]:
    order = random.Random(0)
    for repetition in range(max(scale.repetitions, scale.contended)):
        for cell in product(scale.clients, scale.holds):
            if repetition < _repetitions(scale, *cell):
                meeting = [entry for entry in entries if _meets(entry, cell[0])]
                order.shuffle(meeting)
                yield from ((entry, *cell) for entry in meeting)


def _repetitions(scale: _Scale, clients: int, hold: float) -> int:
    if (clients, hold) == CONTENDED:
        return scale.contended
    return scale.crowded if clients > CROWD else scale.repetitions


def _meets(entry: Entry, clients: int) -> bool:
    return PROCESSES in entry.operations or (TASKS in entry.operations and clients > 1)


def _measure(team: Team, meter: Meter, row: Row, scale: _Scale, *, tasks: bool) -> None:
    if not row.clients:
        (answer,) = team.run([Job("alone", row.contender, scale.cycles, WARM_UP)])
        row.rates.append(scale.cycles / ((answer["end"] - answer["start"]) / 1e9))
        return
    hold = row.hold / 1e3
    seconds = max(scale.seconds, ROUNDS * row.clients * hold) if row.clients > 1 else SHORT
    job = Job(
        "contend",
        row.contender,
        seconds=seconds,
        hold=hold,
        tasks=row.clients if tasks else 0,
    )
    team.prepare([job] * (1 if tasks else row.clients))
    meter.start()
    answers = team.go()
    spent = meter.stop()
    _note(row, [one for answer in answers for one in answer["clients"]], spent)


def _note(row: Row, clients: list[Answer], spent: Cost) -> None:
    slice_ = figures(clients)
    row.rates.append(slice_.rate)
    row.wait_p50.append(1e3 * percentile(slice_.waits, 0.5))
    row.wait_p99.append(1e3 * percentile(slice_.waits, 0.99))
    row.wait_max.append(1e3 * slice_.waits[-1])
    row.handoff_p50.append(1e3 * percentile(slice_.handoffs, 0.5))
    row.handoff_p99.append(1e3 * percentile(slice_.handoffs, 0.99))
    row.handed.append(slice_.handed)
    row.round_trips.append(spent.round_trips / slice_.grants)
    row.commands.append(spent.commands / slice_.grants)
    row.server.append(1e6 * spent.busy / slice_.grants)
    row.jain.append(jain(slice_.each))
    row.twice += slice_.twice
    for client in clients:
        row.errors.update(client["errors"])


LARGE = 10.0
THOUSAND = 1000
LEGEND = """\
hand-off: p50/p99 from the call of release to the running of one who had been waiting
trips: reads of the server for each grant; cmds: commands it ran, inside scripts too
Jain: 1 if all got the lock equally often, 1/n if one of n always did"""
_ORDER = {entry.name: index for index, entry in enumerate(ENTRIES)}
_BASES = {
    "2 PING": contenders.PING.name,
    "2 PING bytes": contenders.PING_BYTES.name,
    "redis-py": "redis-py",
}


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make a table of locks alone, and one for each crowd and hold time."""
    rows = [Row(**row) for row in result["rows"]]
    rows.sort(key=lambda row: _ORDER[row.contender])
    missing = result["missing"]
    alone = [row for row in rows if not row.clients]
    if alone:
        yield _alone(alone, missing)
    for clients, hold in product(result["scale"]["clients"], result["scale"]["holds"]):
        crowd = [row for row in rows if (row.clients, row.hold) == (clients, hold)]
        if crowd:
            yield _crowd(crowd, missing)
    wrong = [row for row in rows if row.twice or row.errors]
    if wrong:
        yield _wrong(wrong)


def _alone(rows: list[Row], missing: Sequence[str]) -> Table:
    named = {row.contender: row for row in rows}
    bases = {label: named.get(name) for label, name in _BASES.items()}
    columns = ["", "cycles/s", "µs/cycle", *(f"rate / {label}" for label in bases)]
    lines = [_alone_line(row, list(bases.values())) for row in rows]
    return show.table(
        "acquire + release, one client and no other",
        columns,
        lines + [_absent(title, len(columns)) for title in missing],
    )


def _alone_line(row: Row, bases: list[Row | None]) -> list[str]:
    rate = summarize(row.rates).median
    return [
        row.title,
        f"{rate:,.0f}",
        f"{1e6 / rate:.1f}",
        *("" if base is None else show.ratio(ratios(row.rates, base.rates)) for base in bases),
    ]


def _crowd(rows: list[Row], missing: Sequence[str]) -> Table:
    columns: dict[str, Callable[[Row], str]] = {
        "": lambda row: row.title,
        "grants/s": lambda row: _spread(row.rates, _thousands),
        "wait p50": lambda row: _median(row.wait_p50),
        "wait p99 ms": lambda row: _spread(row.wait_p99, _short),
        "hand-off ms": _handoff,
        "trips": lambda row: _median(row.round_trips),
        "cmds": lambda row: _median(row.commands),
        "Jain": lambda row: f"{summarize(row.jain).median:.3f}",
    }
    lines = [[cell(row) for cell in columns.values()] for row in rows]
    clients, hold = rows[0].clients, rows[0].hold
    made = show.table(
        f"{clients} client{'s' if clients > 1 else ''} on one lock, held {hold:g} ms",
        columns,
        lines + [_absent(title, len(columns)) for title in missing],
    )
    made.caption, made.caption_justify = LEGEND, "left"
    return made


def _median(values: Sequence[float]) -> str:
    return _short(summarize(values).median)


def _spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    found = summarize(values)
    return f"{form(found.median)} ({form(found.low)}-{form(found.high)})"


def _short(value: float) -> str:
    return f"{value:.2g}" if value < LARGE else f"{value:,.0f}"


def _thousands(value: float) -> str:
    return f"{value / THOUSAND:.1f}k" if value >= THOUSAND else f"{value:.0f}"


def _handoff(row: Row) -> str:
    if not any(row.handed):
        return "-"
    return f"{_median(row.handoff_p50)}/{_median(row.handoff_p99)}"


def _wrong(rows: list[Row]) -> Table:
    return show.table(
        "what went wrong",
        ["", "clients", "held ms", "grants while held", "errors"],
        (
            [row.title, f"{row.clients}", f"{row.hold:g}", f"{row.twice}", _errors(row)]
            for row in rows
        ),
    )


def _errors(row: Row) -> str:
    return ", ".join(f"{count} {name}" for name, count in row.errors.items()) or "none"


def _absent(title: str, columns: int) -> list[str]:
    return [title, "not installed", *[""] * (columns - 2)]
