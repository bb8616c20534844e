"""Random sites whose pages fail, move and answer late, and what a crawl of them has to fetch."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crawling import Site, number_of

if TYPE_CHECKING:
    import random

RETRY_TIMES = 2
# What a page is, and how often among a hundred.
KINDS = {
    "plain": 60,
    "redirect": 10,
    "itself": 5,  # redirects to itself some times
    "circle": 4,  # redirects to a page that redirects to it, as for a cookie
    "flaky": 8,  # 503 some times
    "cut": 4,  # no answer some times
    "broken": 3,  # 503 always
    "missing": 4,  # 404
    "raises": 2,  # its callback raises
}
FAIL = {"broken", "missing"}
"""There is no callback."""


@dataclass
class Page:
    """What becomes of a request for a page.

    Attributes:
        times: How often it does not answer before it does.
        to: Where it redirects to.
        links: Where it leads to, in order, repeats included.
    """

    number: int
    kind: str = "plain"
    times: int = 0
    to: int = -1
    status: int = 302
    links: list[int] = field(default_factory=list)

    @property
    def found(self) -> list[int]:
        """The pages to which requests are made for it."""
        if self.kind == "redirect":
            return [self.to]
        if self.kind in {"raises", *FAIL}:
            return []
        # The first answer of a circle leads there, and back.
        return [*self.links, *([self.to] if self.kind == "circle" else [])]

    @property
    def more(self) -> int:
        """How often it is asked for beyond once."""
        return RETRY_TIMES if self.kind == "broken" else self.times


class RandomSite(Site):
    """Pages by chance; a crawl starts at page 0.

    Attributes:
        how: What is peculiar about requests for some pages; see `LinkSpider`.
        raises: The pages whose callbacks raise.
    """

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.pages = [Page(number) for number in range(chance.randint(20, 60))]
        self._times: Counter[int] = Counter()
        kinds, weights = list(KINDS), [*KINDS.values()]
        weights[0] = round(weights[0] / chance.choice([0.3, 1.0, 1.6]))
        plain = [*self.pages]
        for page in plain[1:]:
            page.kind = chance.choices(kinds, weights)[0]
            page.status = chance.choice([301, 302, 303, 307, 308])
            if page.kind in {"itself", "flaky", "cut"}:
                page.times = chance.randint(1, RETRY_TIMES)
            if page.kind == "circle":
                page.times, page.to = 1, len(self.pages)
                # No link leads to the page between.
                self.pages.append(Page(page.to, "redirect", to=page.number))
            if page.kind == "redirect":
                # They end: each leads to a later page, or to the start.
                page.to = chance.choice([*range(page.number + 1, len(plain)), 0])
        most = chance.choice([4, 8, 20])
        for page in plain:
            count = chance.randint(1 if page.number else 3, most)
            page.links = [chance.choice(plain).number for _ in range(count)]
        options: list[dict[str, Any]] = [{"beside": True}, {"priority": -5}, {"priority": 10}]
        self.how = {f"/{page.number}": chance.choice(options) for page in chance.sample(plain, 8)}
        self.raises = [f"/{page.number}" for page in plain if page.kind == "raises"]

    @property
    def asked(self) -> Counter[int]:
        """How often each page was asked for."""
        return Counter(map(number_of, self.requested))

    def respond(self, path: str) -> tuple[int, str, str] | None:
        page = self.pages[number_of(path)]
        # (Two requests for a page come at once only where it is fetched twice.)
        self._times[page.number] += 1
        times = self._times[page.number]
        is_early = times <= page.times
        if page.kind == "redirect" or (page.kind == "circle" and is_early):
            return page.status, self.url + address(page.to, times), ""
        if page.kind == "itself" and is_early:
            return page.status, self.url + address(page.number, times), ""
        if page.kind == "cut" and is_early:
            return None
        if page.kind == "broken" or (page.kind == "flaky" and is_early):
            return 503, "", ""
        links = [address(to, place % 4) for place, to in enumerate(page.links)]
        body = "".join(f'<a href="{link}">{link}</a>' for link in links)
        return 404 if page.kind == "missing" else 200, "", body


def address(number: int, form: int) -> str:
    """Return one of the ways to write the address of a page; all have one fingerprint."""
    part = "#part" if form % 2 else ""
    if number % 3:
        return f"/{number}{part}"
    return f"/{number}?{'a=1&b=2' if form < 2 else 'b=2&a=1'}{part}"


@dataclass
class Expected:
    """What a crawl of a site has to fetch.

    Attributes:
        asked: How often each page is asked for, its retries included; at least and at most.
        done: How often the callback of each page ends, at least.
        refused: How many requests are duplicates, where one process does all.
    """

    asked: dict[int, tuple[int, int]] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    refused: int = 0


def expected(pages: list[Page], *, starts: int, records_start: bool) -> Expected:
    """Return what a crawl without disturbances fetches.

    Args:
        pages: The site.
        starts: How often the first page is asked for without the filter.
        records_start: Whether that records it.
    """
    found = Expected()
    reached, left = {0}, deque([pages[0]])
    offers, is_linked = 0, False
    while left:
        page = left.popleft()
        is_linked |= 0 in page.found
        # Back in a circle it is no duplicate.
        is_back = page.kind == "redirect" and pages[page.to].to == page.number
        offers += len(page.found) - is_back
        new = set(page.found) - reached
        reached |= new
        left.extend(pages[number] for number in sorted(new))
    # The first page is fetched once more for a link to it, unless it is recorded.
    is_again = is_linked and not records_start
    for number in reached:
        page = pages[number]
        least = most = 1
        if number == 0:
            least, most = starts + (is_again and starts == 1), starts + is_again
        found.asked[number] = least + page.more, most + page.more
        if page.kind not in {"redirect", "raises", *FAIL}:
            found.done[number] = least
    # All of the first page comes once for each time that it is fetched.
    offers += len(pages[0].found) * is_again
    found.refused = offers - (len(reached) - (not is_again))
    return found
