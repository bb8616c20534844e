"""The rules of claims as pure functions: what the scripts claim_*.lua do to those of one shard.

`test_same_everywhere.py` compares the two for random histories, and `claim_explorer.py` visits all
histories of a few workers. The layout is that of bloomlock/claims.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bloomlock.claims import Answer, ClaimRequest, Failure, Held, Offered, Outcome, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    Publish = Callable[[bytes, bytes], None]

LOST_LIFE_MS = 86_400_000
"""How long it is remembered that a claim was taken over."""
LEASE_OVER = b"its lease ran out before the work was done"


@dataclass
class ShardClaims:
    """The state of one shard.

    Attributes:
        header: The shard's.
        bits: The offsets of the bits that are set, four bytes each.
        of_header: That of the generation the rest belongs to.
    """

    header: bytes
    bits: set[bytes] = field(default_factory=set)
    of_header: bytes = b""
    leases: dict[bytes, int] = field(default_factory=dict)
    open: dict[bytes, Record] = field(default_factory=dict)
    failed: dict[bytes, Failure] = field(default_factory=dict)
    lost: dict[bytes, int] = field(default_factory=dict)
    waiting: dict[bytes, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    fence: int = 0

    def count(self, counter: str) -> None:
        """Count one more."""
        self.counts[counter] = self.counts.get(counter, 0) + 1


def claim(
    state: ShardClaims, now_us: int, header: bytes, request: ClaimRequest, publish: Publish
) -> Answer | None:
    """Take an item that is neither done nor claimed; None: it is another generation.

    Args:
        state: Is changed.
        now_us: The server's time.
        header: That of the generation the client knows.
        request: What is asked for.
        publish: Is given a channel and a token for each client that is to be woken.
    """
    if not _is_of_generation(state, header):
        return None
    now_ms = now_us // 1000
    found = state.open.get(request.id)
    if found is not None and request.id not in state.leases:
        # A claim whose deadline is missing may be a live one.
        state.leases[request.id] = now_ms + request.lease_ms
    is_over = found is not None and state.leases[request.id] <= now_ms
    if _bits_of(request.places) <= state.bits:
        if found is not None and is_over:
            if found.token:
                # Else it could be committed after a discard and another worker's commit.
                _take_over(state, now_ms, found.token)
            _end(state, request.id, "expired", publish)
        return Answer(Outcome.SEEN, at_us=now_us)
    if found is not None and request.token == found.token:
        state.leases[request.id] = max(state.leases[request.id], now_ms + request.lease_ms)
        if not request.only_expired:
            # Another call of the same worker, whose first one was not answered.
            state.open[request.id] = found._replace(carried=request.carried)
        return Answer(Outcome.NEW, found.fence, found.attempts)
    if request.only_expired and not is_over:
        return Answer(Outcome.GONE)
    if found is not None and found.token and not is_over:
        _wait(state, request)
        left = state.leases[request.id] - now_ms
        return Answer(Outcome.BUSY, remaining_ms=left, carried=found.carried)
    return _grant(state, now_us, request, found, publish)


def _grant(
    state: ShardClaims,
    now_us: int,
    request: ClaimRequest,
    found: Record | None,
    publish: Publish,
) -> Answer:
    """Give an item to who asks, unless it failed too often."""
    failure = state.failed.get(request.id)
    attempts = max(found.attempts if found else 0, failure.attempts if failure else 0)
    known = found or failure
    max_attempts = request.max_attempts or (known.max_attempts if known else 0)
    carried = found.carried if found and request.only_expired else request.carried
    if 0 < max_attempts <= attempts:
        if found is not None:
            # No other worker has it, so its worker may still commit it.
            error = LEASE_OVER if found.token or failure is None else failure.error
            failure = Failure(attempts, max_attempts, error, found.carried, found.token)
            state.failed[request.id] = failure
            _end(state, request.id, "expired", publish)
        return Answer(Outcome.FAILED, attempts=attempts)
    if found is not None and found.token:
        _take_over(state, now_us // 1000, found.token)
        state.count("expired")
    if failure is not None and failure.token:
        _take_over(state, now_us // 1000, failure.token)
        state.failed[request.id] = failure._replace(token=b"")
    state.lost.pop(request.token, None)
    state.fence = max(state.fence + 1, now_us)
    state.open[request.id] = Record(request.token, state.fence, attempts + 1, max_attempts, carried)
    state.leases[request.id] = now_us // 1000 + request.lease_ms
    state.count("claimed")
    return Answer(Outcome.NEW, state.fence, attempts + 1)


def commit(state: ShardClaims, header: bytes, held: Held, publish: Publish) -> bool | None:
    """Set the bits of an item and end its claim; False: another worker claimed the item since.

    None: it is another generation. The arguments are those of `claim`.
    """
    if not _is_of_generation(state, header):
        return None
    found = state.open.get(held.id)
    if held.token in state.lost or (found is not None and found.token != held.token):
        return False
    state.bits |= _bits_of(held.places)
    state.failed.pop(held.id, None)
    if found is not None:
        _end(state, held.id, "committed", publish)
    return True


def abandon(
    state: ShardClaims,
    now_us: int,
    header: bytes,
    held: Held,
    publish: Publish,
    *,
    error: bytes | None = None,
    offered: Offered = Offered.NEVER,
) -> bool | None:
    """Give an item back; False: the claim was over already. None: it is another generation.

    Args:
        state: Is changed.
        now_us: See `claim`.
        header: See `claim`.
        held: The claim.
        publish: See `claim`.
        error: Why the work failed; None: it did not, and the attempt does not count.
        offered: When the item is to be found again, unless it failed as often as it may.
    """
    if not _is_of_generation(state, header):
        return None
    found = state.open.get(held.id)
    if found is None or found.token != held.token:
        return False
    # One that was retried since has no attempts.
    attempts = found.attempts if error is not None else max(0, found.attempts - 1)
    if error is not None and found.max_attempts:
        state.failed[held.id] = Failure(attempts, found.max_attempts, error, found.carried)
    counter = "abandoned" if error is None else "failed"
    if offered and not 0 < found.max_attempts <= attempts:
        state.open[held.id] = found._replace(token=b"", attempts=attempts)
        if offered is Offered.AT_ONCE:
            state.leases[held.id] = now_us // 1000
        state.count(counter)
        _wake(state, held.id, publish)
    else:
        _end(state, held.id, counter, publish)
    return True


def renew(state: ShardClaims, now_us: int, header: bytes, held: Held, lease_ms: int) -> bool | None:
    """Let a claim live for at least `lease_ms` from now; False: it is over. See `claim`.

    Never creates a claim, and never shortens a lease: it may be a late copy of an earlier request.
    """
    if not _is_of_generation(state, header):
        return None
    found = state.open.get(held.id)
    if found is None or found.token != held.token:
        return False
    state.leases[held.id] = max(state.leases.get(held.id, 0), now_us // 1000 + lease_ms)
    return True


def find_expired(
    state: ShardClaims, now_us: int, header: bytes, count: int
) -> list[tuple[bytes, Record]] | None:
    """Return the claims that have been over for longest, at most `count`; see `claim`."""
    if not _is_of_generation(state, header):
        return None
    now_ms = now_us // 1000
    over = [(until_ms, item) for item, until_ms in state.leases.items() if until_ms <= now_ms]
    found = []
    for _, item in sorted(over)[:count]:
        if item in state.open:
            found.append((item, state.open[item]))
        else:
            del state.leases[item]
    return found


def retry(state: ShardClaims, now_us: int, header: bytes, item: bytes) -> bool | None:
    """Offer an item that failed, or whose claim is over, at once and with no attempts counted.

    True: a worker has it, or is given it. False: it did not fail. None: see `claim`.
    """
    if not _is_of_generation(state, header):
        return None
    found, failure = state.open.get(item), state.failed.get(item)
    if _is_live(state, now_us, item):
        return True
    if found is not None:
        state.open[item] = found._replace(attempts=0)
    elif failure is not None:
        state.fence = max(state.fence + 1, now_us)
        state.open[item] = Record(b"", state.fence, 0, failure.max_attempts, failure.carried)
    else:
        return False
    _forget_failure(state, now_us, item)
    state.leases[item] = now_us // 1000
    return True


def drop(
    state: ShardClaims, now_us: int, header: bytes, item: bytes, publish: Publish
) -> bool | None:
    """Forget an item that failed, or whose claim is over, and the attempts.

    False: it did not fail, or a worker has it. None: see `claim`.
    """
    if not _is_of_generation(state, header):
        return None
    if _is_live(state, now_us, item):
        return False
    found, failure = state.open.get(item), state.failed.get(item)
    _forget_failure(state, now_us, item)
    if found is not None:
        if found.token:
            _take_over(state, now_us // 1000, found.token)
        _end(state, item, "expired", publish)
    return found is not None or failure is not None


def _is_live(state: ShardClaims, now_us: int, item: bytes) -> bool:
    """Return whether a worker has the item; it may, if the deadline is missing."""
    found = state.open.get(item)
    until_ms = state.leases.get(item)
    is_over = until_ms is not None and until_ms <= now_us // 1000
    return found is not None and found.token != b"" and not is_over


def _forget_failure(state: ShardClaims, now_us: int, item: bytes) -> None:
    failure = state.failed.pop(item, None)
    if failure is not None and failure.token:
        _take_over(state, now_us // 1000, failure.token)


def _is_of_generation(state: ShardClaims, header: bytes) -> bool:
    if state.header != header:
        return False
    if state.of_header != header:
        fence = state.fence
        vars(state).update(vars(ShardClaims(header, state.bits, header, fence=fence)))
    return True


def _bits_of(places: bytes) -> set[bytes]:
    return {places[start : start + 4] for start in range(0, len(places), 4)}


def _wait(state: ShardClaims, request: ClaimRequest) -> None:
    if request.channel:
        waiting = state.waiting.setdefault(request.id, [])
        if (request.channel, request.token) not in waiting:
            waiting.append((request.channel, request.token))


def _wake(state: ShardClaims, item: bytes, publish: Publish) -> None:
    for channel, token in state.waiting.pop(item, ()):
        publish(channel, token)


def _take_over(state: ShardClaims, now_ms: int, taken: bytes) -> None:
    """Note that the claim of another worker is lost to it."""
    state.lost = {
        token: at_ms for token, at_ms in state.lost.items() if at_ms > now_ms - LOST_LIFE_MS
    }
    state.lost[taken] = now_ms


def _end(state: ShardClaims, item: bytes, counter: str, publish: Publish) -> None:
    """Remove a claim; one without a token was counted when it was given back."""
    if state.open.pop(item).token:
        state.count(counter)
    state.leases.pop(item, None)
    _wake(state, item, publish)
