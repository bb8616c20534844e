"""Every order in which the requests of some clients of a filter that grows may reach the server.

The cores are the library's, driven request by request against a real server. A schedule is a list
of choices: which client's next request the server carries out, and what becomes of it. Each
schedule is run from the same start, so all states are visited, with as many faults as allowed:

    done    carried out, and answered
    before  the connection is lost before the server has the request
    after   it is carried out, and the reply is lost
    crash   it is carried out, and the client is gone
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import redis

from bloomlock import OutcomeUnknownError
from bloomlock.effects import ConnectionLost, Pause, Pipeline, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DONE, BEFORE, AFTER, CRASH = "done", "before", "after", "crash"
FAULTS = (BEFORE, AFTER, CRASH)
GONE, UNKNOWN = "gone", "unknown"
ALONE = b"INFO"
"""What reads no key is carried out at once: its order with others changes nothing."""


class Choice(NamedTuple):
    """What happens next: the request of which client, and what becomes of it."""

    client: int
    fate: str


class Taken(NamedTuple):
    """What has happened, and the outcome of that client's call after it."""

    client: int
    fate: str
    outcome: Any


class Client:
    """One core on its way.

    Attributes:
        outcome: What it returned, GONE, UNKNOWN, or None while it is on its way.
        history: What became of its requests, and the replies it got.
    """

    def __init__(self, made: Any, core: Any) -> None:
        self._made = made
        self._core = core
        self.outcome: Any = None
        self.history: list[tuple[str, str]] = []
        self._step: Any = None
        self._advance(core.send, None)

    def carry_out(self, fate: str) -> None:
        """Let its request meet its fate."""
        lost = ConnectionLost(redis.ConnectionError("lost"), sent=True, replies=[])
        replies = None if fate == BEFORE else self._execute()
        self.history.append((fate, repr(replies) if fate == DONE else ""))
        if fate == CRASH:
            self.outcome = GONE
        elif fate == DONE:
            self._advance(self._core.send, replies)
        else:
            self._advance(self._core.throw, lost)

    def _advance(self, how: Callable[[Any], Any], value: Any) -> None:
        try:
            self._step = how(value)
            while not isinstance(self._step, (Request, Pipeline)) or self._is_alone():
                answer = None if isinstance(self._step, Pause) else self._execute()
                self._step = self._core.send(answer)
        except StopIteration as stop:
            self.outcome = (stop.value,)
        except (OutcomeUnknownError, redis.ConnectionError):
            self.outcome = UNKNOWN

    def _is_alone(self) -> bool:
        return isinstance(self._step, Request) and ALONE in bytes(self._step.commands[0])

    def _execute(self) -> Any:
        def one(step: Any) -> Any:
            return (yield step)

        return self._made._runtime.run(one(self._step))


def explore(
    start: Callable[[], Sequence[Client]],
    judge: Callable[[Sequence[Client], list[Taken]], None],
    contents: Callable[[], object],
    *,
    faults: int,
) -> int:
    """Visit every state that some schedule leads to; return how many there are.

    A state is what the server has, and what each client has been answered so far. One that another
    schedule has led to is not followed again.

    Args:
        start: Brings the server to the start, and makes the clients.
        judge: Called in each state; raises where something is wrong.
        contents: Returns what the server has.
        faults: How many requests do not end well, at most.
    """
    states: set[object] = set()
    # Depth first: the choices open after each prefix are tried in order.
    path: list[tuple[list[Choice], int]] = []
    while True:
        clients = start()
        taken: list[Taken] = []
        for choices, number in path:
            _take(clients, taken, choices[number])
        while True:
            if taken:
                state = (contents(), *(tuple(client.history) for client in clients))
                if state in states:
                    break
                states.add(state)
                judge(clients, taken)
            choices = _choices(clients, taken, faults)
            if not choices:
                break
            path.append((choices, 0))
            _take(clients, taken, choices[0])
        while path and path[-1][1] + 1 == len(path[-1][0]):
            path.pop()
        if not path:
            return len(states)
        choices, number = path.pop()
        path.append((choices, number + 1))


def _choices(clients: Sequence[Client], taken: list[Taken], faults: int) -> list[Choice]:
    left = faults - sum(one.fate != DONE for one in taken)
    fates = (DONE, *FAULTS) if left > 0 else (DONE,)
    going = [number for number, client in enumerate(clients) if client.outcome is None]
    return [Choice(number, fate) for number in going for fate in fates]


def _take(clients: Sequence[Client], taken: list[Taken], choice: Choice) -> None:
    client = clients[choice.client]
    client.carry_out(choice.fate)
    taken.append(Taken(*choice, client.outcome))
