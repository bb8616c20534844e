"""What Claim and AsyncClaim say without a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from bloomlock.runtime.clients import not_portable

from .claim_session import ClaimState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from .claim_session import ClaimSession


class ClaimBase:
    """What is known of a claim without a request.

    Args:
        session: The claim.
        run: Carries out what is asked of the server.
    """

    def __init__(self, session: ClaimSession, run: Callable[[Any], Any]) -> None:
        """Take a claim that was asked for."""
        self._session = session
        self._run = run

    def __bool__(self) -> bool:
        """Whether the item is this worker's to work on: whether the state is NEW."""
        return self.state is ClaimState.NEW

    @property
    def state(self) -> ClaimState:
        """NEW, SEEN, BUSY or FAILED, as the server answered."""
        return self._session.state

    @property
    def item(self) -> str | bytes:
        """The item."""
        return self._session.offer.item

    @property
    def payload(self) -> str | bytes | None:
        """What was kept with the item; BUSY: by the other claim."""
        return self._session.offer.payload

    @property
    def attempts(self) -> int:
        """How often work on the item began and did not end well, this claim (if NEW) included."""
        return self._session.attempts

    @property
    def fence(self) -> int | None:
        """The number of a NEW claim, which rises with each claim of the shard; else None."""
        hold = self._session.hold
        return None if hold is None else hold.fence

    @property
    def remaining(self) -> float:
        """Seconds left of the lease, of this claim or, BUSY, of the other; else 0."""
        return self._session.remaining

    @property
    def lost(self) -> bool:
        """Whether this worker cannot rely on the claim any more, as far as is known here."""
        return bool(self._session.lost)

    def check(self) -> None:
        """Raise ClaimLostError if `lost`, ClaimError if there is no claim to rely on."""
        self._session.check()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: a claim is renewed by its process."""
        raise TypeError(not_portable(self))

    def __repr__(self) -> str:
        """Return item and state; no request is sent."""
        ended = self._session.ended
        state = f"{self.state.name}, {ended}" if ended else self.state.name
        return f"<{type(self).__name__} of {self.item!r:.80}: {state}>"


def sessions_of(made: Iterable[ClaimBase]) -> list[ClaimSession]:
    """Return what several claims stand for."""
    return [one._session for one in made]  # noqa: SLF001 - our own classes
