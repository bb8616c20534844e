"""Filters whose requests are counted, so that something happens before one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bloomlock import BloomFilter

if TYPE_CHECKING:
    from collections.abc import Callable


class Crash(BaseException):
    """The process ends here: nothing more is sent."""


class Interrupted(BaseException):
    """The process goes on, and may take back what it has begun."""


class Stepped(BloomFilter):
    """A filter that calls `act` before its request of the number `at`.

    Attributes:
        done: How many requests were sent.
    """

    at = -1
    done = 0
    act: Callable[[], object]

    @classmethod
    def before(cls, number: int, act: Callable[[], object]) -> type[Stepped]:
        """Return a class whose objects call `act` before that request of theirs."""
        return type("Before", (cls,), {"at": number, "act": staticmethod(act)})

    @classmethod
    def opened(cls, name: str, number: int, act: Callable[[], object], client: Any) -> Stepped:
        """Return an object that calls `act` before that request after those that open it."""
        kind = cls.before(-1, act)
        made = kind.open(name, client=client)
        kind.done, kind.at = 0, number
        return made

    def _connect(self, state: Any, client: Any) -> None:
        super()._connect(state, client)
        kind = type(self)
        carry_out = self._run

        def run(core: Any) -> Any:
            return carry_out(counted(core))

        def counted(core: Any) -> Any:
            answer: Any = None
            error: BaseException | None = None
            while True:
                try:
                    step = core.send(answer) if error is None else core.throw(error)
                except StopIteration as stop:
                    return stop.value
                answer = error = None
                try:
                    if kind.done == kind.at:
                        kind.done += 1
                        kind.act()
                    kind.done += 1
                    answer = yield step
                except Interrupted as raised:
                    error = raised
                except Exception as raised:  # noqa: BLE001 - it is the core's
                    error = raised

        self._run = run


def crash() -> None:
    raise Crash


def interrupt() -> None:
    raise Interrupted
