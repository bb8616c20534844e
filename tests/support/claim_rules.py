"""The rules of claims: what becomes of an item at each call of a worker.

They say what docs/reference/guarantees.md promises, and nothing of how it is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from explorer import Done

LEASE_OVER = "its lease ran out before the work was done"
OFFERED = "offered"
"""In place of the token of a claim: the item was given back, and `expired` offers it."""
NEVER, AFTER_LEASE, AT_ONCE = "never", "after the lease", "at once"
"""When an item that is given back is offered."""
NOTHING = "nothing", 0, None
"""The answer of a take-over that finds no claim."""
COUNTS = ("claimed", "committed", "abandoned", "failed", "expired")


class Act(NamedTuple):
    """A call, and what it says; `token` is that of the claim it makes or ends."""

    name: str
    token: Any = None
    payload: str | None = None
    limit: int = 0
    error: str | None = None
    offered: str = NEVER


class Failure(NamedTuple):
    """What is known of an item that failed."""

    attempts: int
    limit: int
    error: str
    payload: str | None

    @property
    def is_final(self) -> bool:
        return 0 < self.limit <= self.attempts


class Item(NamedTuple):
    """What an item is for its workers.

    Attributes:
        is_done: Whether it was committed or added.
        is_dead: Whether it was discarded since.
        holder: The token of the claim that was not ended, or OFFERED.
        is_over: Whether the lease of that is over.
        attempts, limit, payload: Of that claim.
        failure: Why it failed.
        lost: Tokens of claims that others took over, or of before a clear.
        granted: All tokens.
        counts: How often claims were made and ended, in the order of COUNTS.
    """

    is_done: bool = False
    is_dead: bool = False
    holder: Any = None
    is_over: bool = False
    attempts: int = 0
    limit: int = 0
    payload: str | None = None
    failure: Failure | None = None
    lost: frozenset[Any] = frozenset()
    granted: frozenset[Any] = frozenset()
    counts: tuple[int, ...] = (0,) * len(COUNTS)

    @property
    def is_held(self) -> bool:
        return self.holder not in (None, OFFERED)

    def counted(self, name: str) -> Item:
        return self._replace(
            counts=tuple(n + (one == name) for n, one in zip(self.counts, COUNTS, strict=True))
        )

    def finished(self, name: str) -> Item:
        """End the claim; an item that was given back was counted then."""
        ended = self.counted(name) if self.is_held else self
        return ended._replace(holder=None, is_over=False, attempts=0, limit=0, payload=None)

    def taken_over(self, token: Any) -> Item:
        """Let the worker of this claim commit no more."""
        return self._replace(lost=self.lost | ({token} - {None, OFFERED}))


def after(one: Done, item: Item) -> list[Item]:
    """Return what the item may be after an operation that gave its answer."""
    act = Act(one.kind, one.client) if isinstance(one.kind, str) else one.kind
    if act.name == "take over" and item.holder == act.token and not item.is_over:
        # A call that was cut off made that claim. The next one does not find it to be over.
        answers = None, NOTHING, ("new", item.attempts, item.payload)
        return [item] if one.answer in answers else []
    answer, then = RULES[act.name](act, item)
    return [then] if one.answer in (None, answer) else []


def _claim(act: Act, item: Item) -> tuple[Any, Item]:
    takes_over = act.name == "take over"
    answer, then = _claim_or_not(act, item, only_expired=takes_over)
    return (NOTHING if takes_over and answer[0] != "new" else answer), then


def _claim_or_not(act: Act, item: Item, *, only_expired: bool) -> tuple[Any, Item]:
    failure = item.failure
    if item.is_done:
        if item.holder is not None and item.is_over:
            # Else it could be committed after a discard and another worker's commit.
            item = item.taken_over(item.holder).finished("expired")
        return ("seen", 0, None), item
    if item.holder == act.token:
        payload = item.payload if only_expired else act.payload
        return ("new", item.attempts, payload), item._replace(is_over=False, payload=payload)
    if only_expired and not item.is_over:
        return ("gone", 0, None), item
    if item.is_held and not item.is_over:
        return ("busy", 0, item.payload), item
    attempts = max(item.attempts, failure.attempts if failure else 0)
    limit = act.limit or (
        item.limit if item.holder is not None else failure.limit if failure else 0
    )
    if 0 < limit <= attempts:
        if item.holder is not None:
            error = failure.error if failure and not item.is_held else LEASE_OVER
            failed = Failure(attempts, limit, error, item.payload)
            item = item.taken_over(item.holder).finished("expired")._replace(failure=failed)
        return ("failed", attempts, None), item
    payload = item.payload if only_expired else act.payload
    item = item.counted("expired") if item.is_held else item
    item = item.taken_over(item.holder).counted("claimed")
    return ("new", attempts + 1, payload), item._replace(
        holder=act.token,
        is_over=False,
        attempts=attempts + 1,
        limit=limit,
        payload=payload,
        lost=item.lost - {act.token},
        granted=item.granted | {act.token},
    )


def _commit(act: Act, item: Item) -> tuple[Any, Item]:
    """The item is done, unless another worker claimed it since, or all was cleared.

    A repetition may come after the claim it has ended, and after a discard or another claim.
    """
    if act.token in item.lost:
        return "lost", item
    if item.holder != act.token and (item.holder is not None or item.is_dead):
        return "unknown", item
    return "done", item.finished("committed")._replace(is_done=True, is_dead=False, failure=None)


def _give_back(act: Act, item: Item) -> tuple[Any, Item]:
    """Without an error the attempt does not count."""
    if item.holder != act.token:
        return "done", item
    # One that was retried since has no attempts.
    attempts = item.attempts if act.error else max(0, item.attempts - 1)
    counter = "failed" if act.error else "abandoned"
    if act.error and item.limit:
        item = item._replace(failure=Failure(attempts, item.limit, act.error, item.payload))
    if act.offered == NEVER or 0 < item.limit <= attempts:
        return "done", item.finished(counter)
    is_over = item.is_over or act.offered == AT_ONCE
    return "done", item.counted(counter)._replace(
        holder=OFFERED, is_over=is_over, attempts=attempts
    )


def _extend(act: Act, item: Item) -> tuple[Any, Item]:
    if item.holder != act.token:
        return "lost", item
    return "done", item._replace(is_over=False)


def _settle(act: Act, item: Item) -> tuple[Any, Item]:
    """Offer an item that failed, or whose lease is over, or forget it; a live claim is left."""
    retries, failure = act.name == "retry", item.failure
    is_live = item.is_held and not item.is_over
    if is_live or (item.holder is None and failure is None):
        return retries and is_live, item
    item = item._replace(failure=None)
    if not retries:
        return True, item.taken_over(item.holder).finished("expired")
    if item.holder is None:
        assert failure is not None
        item = item._replace(holder=OFFERED, limit=failure.limit, payload=failure.payload)
    return True, item._replace(attempts=0, is_over=True)


RULES: dict[str, Any] = {
    "claim": _claim,
    "take over": _claim,
    "commit": _commit,
    "give back": _give_back,
    "extend": _extend,
    "retry": _settle,
    "drop": _settle,
    "exists": lambda _, item: (item.is_done, item),
    "add": lambda _, item: (not item.is_done, item._replace(is_done=True, is_dead=False)),
    "discard": lambda _, item: (
        item.is_done,
        item._replace(is_done=False, is_dead=item.is_done or item.is_dead),
    ),
    "clear": lambda _, item: (None, Item(lost=item.granted, granted=item.granted)),
    "lease ends": lambda _, item: (None, item._replace(is_over=item.holder is not None)),
    "fill": lambda _, item: (None, item),
    "look": lambda _, item: (seen(item), item),
}


def seen(item: Item) -> Any:
    claim, failure = (item.payload, item.attempts, item.is_over), item.failure
    return (
        [claim] if item.holder is not None else [],
        [(*failure[:1], *failure[2:4], failure.is_final)] if failure else [],
        item.counts,
    )
