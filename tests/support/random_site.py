"""Random sites whose pages say what their callbacks do, and what a crawl of them has to fetch."""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

RETRY_TIMES = 2
FOR_EVER = 1 << 30
# What a page is, and how often among a hundred.
KINDS = {
    "plain": 58,
    "redirect": 10,
    "itself": 4,  # redirects to itself some times
    "circle": 3,  # redirects to a page that redirects to it, as for a cookie
    "flaky": 7,  # 503 some times
    "broken": 3,  # 503 always
    "cut": 3,  # no answer some times
    "gone": 2,  # no answer ever
    "missing": 4,  # 404
    "ignored": 1,  # a middleware raises IgnoreRequest, as for robots.txt
    "raises": 2,  # its callback raises
    "bad item": 1,  # the pipeline raises for an item
}
FAIL = {"broken", "gone", "missing", "ignored"}
"""There is no callback, but an errback."""
CALLBACKS = ("parse", "parse_slowly", "parse_list", "parse_at_once")
COLLECTED = {"parse_list", "parse_at_once"}
"""These return a list, so that nothing of it is left if they raise."""
SPECIAL = ("dont_filter", "filter", "record", "neither", "plain")

Step = list[Any]


@dataclass
class Link:
    """A request that a page leads to. `flags` go into it; see `request_of` of the spider."""

    to: int
    way: str = "plain"
    priority: int = 0
    form: int = 0


@dataclass
class Page:
    """What becomes of a request for a page, and what its callback or errback does.

    Attributes:
        times: How often it does not answer before it does.
        to: Where it redirects to.
        by: The callback of requests for it.
        steps: "item", "wait", "raise", and links, one after the other.
        if_failed: Links that its errback yields; None: it has no errback.
        special: Whether requests may be forced or not be recorded. Such a page leads nowhere.
    """

    number: int
    kind: str = "plain"
    times: int = 0
    to: int = -1
    status: int = 302
    by: str = "parse"
    steps: list[Step | Link] = field(default_factory=list)
    if_failed: list[Link] | None = None
    special: bool = False


@dataclass
class Plan:
    """A site. Page 0 is the start."""

    pages: list[Page]

    def outcome(self, page: Page) -> Page:
        """Return where the redirects from a page end."""
        while page.kind == "redirect":
            page = self.pages[page.to]
        return page

    def links_of(self, page: Page) -> list[Link]:
        """Return the requests that are yielded for a page, before it raises."""
        if page.kind == "redirect":
            return []
        if page.kind in FAIL:
            return page.if_failed or []
        steps = page.steps
        if ["raise"] in steps:
            steps = steps[: steps.index(["raise"])]
        return [step for step in steps if isinstance(step, Link)]

    def items_of(self, page: Page) -> int:
        """Return how many items a callback yields and no pipeline refuses."""
        if page.kind in FAIL or page.kind == "redirect":
            return 0
        steps = page.steps
        if ["raise"] in steps:
            steps = steps[: steps.index(["raise"])]
        return sum(step in (["item", "fine"], ["item", "slow"]) for step in steps)


def make_plan(chance: random.Random) -> Plan:
    """Return a random site."""
    count = chance.randint(20, 80)
    plan = Plan([Page(number) for number in range(count)])
    pages = plan.pages
    odd = chance.choice([0.3, 1.0, 1.0, 1.6])
    kinds, weights = [*KINDS], [*KINDS.values()]
    weights[0] = round(weights[0] / odd)
    has_special = chance.random() < 0.5
    for page in pages[1:]:
        page.kind = chance.choices(kinds, weights)[0]
        page.special = has_special and page.kind in {"plain", "flaky"} and chance.random() < 0.15
        page.by = chance.choices(CALLBACKS, [5, 3, 1, 1])[0]
        if page.kind in {"flaky", "cut", "itself"}:
            page.times = chance.randint(1, RETRY_TIMES)
        if page.kind == "circle":
            page.times = 1
        if page.kind in {"broken", "gone"}:
            page.times = FOR_EVER
        page.status = chance.choice([301, 302, 303, 307, 308])
    for page in pages[1:]:
        _find_target(chance, plan, page)
    _link(chance, plan)
    for page in pages[1:]:
        end = plan.outcome(page)
        page.by, page.if_failed = end.by, end.if_failed
    return plan


def _find_target(chance: random.Random, plan: Plan, page: Page) -> None:
    """Choose where a page redirects to, so that redirects but those of circles end."""
    if page.kind == "circle":
        # The page between has a number of its own, and no link leads to it.
        between = Page(len(plan.pages), "redirect", to=page.number)
        between.status = chance.choice([301, 302, 307])
        plan.pages.append(between)
        page.to = between.number
    if page.kind != "redirect" or page.to >= 0:
        return
    later = [
        one
        for one in plan.pages[page.number + 1 :]
        if one.kind != "ignored" and not one.special
        if not (one.kind == "redirect" and one.to >= 0)
    ]
    if later:
        page.to = chance.choice(later).number
    else:
        page.kind = "plain"


def _link(chance: random.Random, plan: Plan) -> None:
    """Give the pages their callbacks and errbacks."""
    hidden = {page.to for page in plan.pages if page.kind == "circle"}
    open_pages = [page for page in plan.pages if page.number not in hidden]
    most = chance.choice([4, 8, 20])
    for page in open_pages:
        if page.kind in FAIL:
            page.if_failed = _errback(chance, page, open_pages)
        elif not page.special and page.kind != "redirect":
            page.steps = _callback(chance, plan, page, open_pages, most)


def _errback(chance: random.Random, page: Page, targets: list[Page]) -> list[Link] | None:
    """Return what the errback of a page yields; None for no errback."""
    if chance.random() < 0.3:
        return None
    later = [one for one in targets if not one.special and one.number > page.number]
    count = chance.randint(0, 3) if later else 0
    return [_make_link(chance, chance.choice(later), []) for _ in range(count)]


def _callback(
    chance: random.Random, plan: Plan, page: Page, targets: list[Page], most: int
) -> list[Step | Link]:
    """Return what the callback of a page does."""
    steps: list[Step | Link] = []
    for _ in range(chance.randint(1 if page.number else 3, most)):
        # Some repeat one on the same page.
        earlier = [step for step in steps if isinstance(step, Link)]
        target = chance.choice(targets)
        if earlier and chance.random() < 0.2:
            target = plan.pages[chance.choice(earlier).to]
        steps.append(_make_link(chance, target, ["engine"]))
        if chance.random() < 0.3:
            steps.append(["item", chance.choices(["fine", "slow", "dropped"], [6, 1, 1])[0]])
        if chance.random() < 0.1:
            steps.append(["wait"])
    if page.kind == "bad item":
        steps.insert(chance.randint(0, len(steps)), ["item", "bad"])
    if page.kind == "raises":
        # What returns a list yields nothing of it.
        place = 0 if page.by in COLLECTED else chance.randint(0, len(steps))
        steps.insert(place, ["raise"])
    return steps


def _make_link(chance: random.Random, target: Page, more: list[str]) -> Link:
    way = "plain"
    if target.special:
        way = chance.choice(SPECIAL)
    elif more and chance.random() < 0.05:
        way = chance.choice(more)
    priority = chance.choice([0, 0, 0, -5, 10])
    return Link(target.number, way, priority, chance.randrange(4))


@dataclass
class Range:
    """Between how many times and how many something happens."""

    least: int = 0
    most: int = 0


@dataclass
class Expected:
    """What a crawl of a site has to fetch, and what it may.

    Attributes:
        done: How often the callback of each page ends.
        asked: How often each page is asked for, its retries included.
        ways: What requests there are for each special page.
        offered: How many requests are filtered if they are seen; None: that depends on the order.
        accepted: How many of them are not seen.
    """

    done: dict[int, Range] = field(default_factory=dict)
    asked: dict[int, Range] = field(default_factory=dict)
    ways: dict[int, Counter[str]] = field(default_factory=dict)
    offered: int | None = None
    accepted: int = 0


def expected(
    plan: Plan,
    *,
    starts: int = 1,
    records_start: bool = False,
    records_unfiltered: bool = False,
) -> Expected:
    """Return what a crawl without disturbances fetches.

    Args:
        plan: The site.
        starts: How often the first page is asked for without the filter.
        records_start: Whether that records it.
        records_unfiltered: Whether a request with `dont_filter` is recorded.
    """
    found = Expected()
    reached, offers, is_linked = _reach(plan, found)
    # The first page is fetched once more for a link to it, unless it is recorded.
    most_starts = starts + (is_linked and not records_start)
    for number in sorted(reached):
        page = plan.pages[number]
        times = Range(1, 1)
        if number == 0:
            times = Range(most_starts if starts == 1 else starts, most_starts)
        elif page.special:
            times = _of_special(found.ways[number], most_starts, records_unfiltered)
        if page.kind == "ignored":
            continue
        more = _more_requests(page)
        found.asked[number] = Range(times.least + more, times.most + more)
        if page.kind not in {"redirect", "raises", *FAIL}:
            found.done[number] = times
    if not found.ways and starts == 1:
        # All of the first page comes once for each time that it is fetched.
        again = len(plan.links_of(plan.pages[0])) * (most_starts - 1)
        found.offered = offers + again
        found.accepted = len(reached) - (1 if records_start or not is_linked else 0)
    return found


def _reach(plan: Plan, found: Expected) -> tuple[set[int], int, bool]:
    """Return which pages are found, by how many requests, and whether one leads to the first."""
    reached, left = {0}, deque([plan.pages[0]])
    offers, is_linked = 0, False
    while left:
        page = left.popleft()
        nexts = [Link(page.to)] if page.kind == "redirect" else plan.links_of(page)
        if page.kind == "circle":
            # The first answer leads there, and back.
            nexts = [*nexts, Link(page.to)]
        for link in nexts:
            is_linked |= link.to == 0
            if plan.pages[link.to].special:
                ways = found.ways.setdefault(link.to, Counter())
                ways[link.way] += 1
                ways[f"start {link.way}"] += page.number == 0
            offers += link.way not in {"dont_filter", "filter", "neither"}
            if link.to not in reached:
                reached.add(link.to)
                left.append(plan.pages[link.to])
        # Back from there it is no duplicate.
        offers -= page.kind == "redirect" and plan.pages[page.to].to == page.number
    return reached, offers, is_linked


def _more_requests(page: Page) -> int:
    """Return how often a page is asked for beyond once."""
    return {
        "itself": page.times,
        "circle": 1,
        "flaky": page.times,
        "cut": page.times,
        "broken": RETRY_TIMES,
        "gone": RETRY_TIMES,
    }.get(page.kind, 0)


def _of_special(ways: Counter[str], starts: int, records_unfiltered: bool) -> Range:
    """Return how often a page is fetched that some requests are forced for, or not recorded."""

    def most(way: str) -> int:
        return ways[way] + ways[f"start {way}"] * (starts - 1)

    forced = ways["dont_filter"] + ways["filter"] + ways["neither"]
    may_be_seen = ways["filter"] or (ways["dont_filter"] and records_unfiltered)
    filtered = ways["plain"] or ways["record"]
    least = forced + (1 if filtered and not may_be_seen else 0)
    at_most = most("dont_filter") + most("filter") + most("neither") + most("record")
    return Range(least, at_most + (1 if ways["plain"] else 0))


class SiteServer:
    """Serves a site on a loopback port, and remembers what was asked for.

    Attributes:
        asked: The numbers of the pages that were asked for.
        on_request: Called with how many requests there were; it may hold the answer back.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.asked: list[int] = []
        self.on_request: Callable[[int], None] = lambda _: None
        self._times: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        # A process that is killed does not wait for its answer.
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.on_request = lambda _: None
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                number = int(urlsplit(self.path).path[1:])
                with site._lock:
                    site.asked.append(number)
                    count = len(site.asked)
                    site._times[number] += 1
                    times = site._times[number]
                site.on_request(count)
                page = site.plan.pages[number]
                answer = site.answer(page, times)
                if answer is None:
                    return
                status, location, body = answer
                self.send_response(status)
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        return Handler

    def answer(self, page: Page, times: int) -> tuple[int, str, bytes] | None:
        """Return status, target and body for a request for a page; None to hang up."""
        is_early = times <= page.times
        if page.kind == "redirect" or (page.kind == "circle" and is_early):
            return page.status, f"{self.url}{address(self.plan.pages[page.to], times)}", b""
        if page.kind == "itself" and is_early:
            return page.status, f"{self.url}{address(page, times)}", b""
        if page.kind in {"cut", "gone"} and is_early:
            return None
        if page.kind in {"flaky", "broken"} and is_early:
            return 503, "", b""
        if page.kind == "missing":
            return 404, "", b""
        return 200, "", json.dumps([*self._told(page.steps)]).encode()

    def _told(self, steps: list[Step | Link]) -> Iterator[Step]:
        """Yield what the spider is told of steps."""
        for step in steps:
            yield self._link(step) if isinstance(step, Link) else step

    def _link(self, link: Link) -> Step:
        page = self.plan.pages[link.to]
        if_failed = page.if_failed
        told = {
            "url": address(page, link.form),
            "way": link.way,
            "priority": link.priority,
            "by": page.by,
            # They lead to later pages only, so this ends.
            "if_failed": None if if_failed is None else [self._link(one)[1] for one in if_failed],
        }
        return ["link", told]


def address(page: Page, form: int) -> str:
    """Return one of the ways to write the address of a page; all have one fingerprint."""
    if page.kind == "ignored":
        return f"/{page.number}?ignore=1"
    if page.number % 3:
        return f"/{page.number}" + ("#part" if form % 2 else "")
    query = "a=1&b=2" if form < 2 else "b=2&a=1"
    return f"/{page.number}?{query}" + ("#part" if form % 2 else "")
