"""What a cluster answers while a slot moves, and what is sent again then. Pure.

https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/ (MOVED, ASK, TRYAGAIN). A
command that is refused so was not carried out, so sending it again is safe even for an update; its
neighbours in the same request may have been, so only the refused ones are sent again.

MOVED and ASK name another server. TRYAGAIN does not: of several keys some are there and some are
not, so no server can carry out the command before the slot has moved. The same is true of a first
request under WATCH, whose connection has to be that of the server that gets the transaction.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from redis.exceptions import AskError, MovedError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError

from bloomlock.commands import MULTI, encode_command
from bloomlock.effects import Request
from bloomlock.refusals import is_slot_refusal
from bloomlock.slot_moves import LONGEST_PAUSE_S, MOVING_SECONDS, SHORTEST_PAUSE_S, moved_too_long

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.commands import Command, Replies
    from bloomlock.effects import ConnectionLost, Pipeline

Target: TypeAlias = tuple[bool, str, int] | None
"""Whether by ASK, host and port of the server to ask; None: the one that has the slot."""

MARGIN_S = 0.2
"""A request gives up so much before the limit of its caller, which then gets the reason."""
MAX_REDIRECTS = 5
"""Redirects that are followed without a pause."""
_ASKING = encode_command("ASKING")


class Sent(NamedTuple):
    """Commands that were answered.

    Attributes:
        key: Any of their keys.
        commands: All of one request.
        replies: One for each; what comes of sending again is put in place.
    """

    key: str
    commands: Sequence[Command]
    replies: Replies


@dataclass(frozen=True, slots=True)
class Redirect:
    """Commands of one request that have to be sent again.

    Attributes:
        indices: Which commands of the request.
        error: Why.
        whole: Whether the commands are one transaction, up to the last command of the request. For
            that ASKING is said once.
    """

    indices: list[int]
    error: AskError | TryAgainError
    whole: bool

    @property
    def target(self) -> Target:
        """Where to."""
        if isinstance(self.error, TryAgainError):
            return None
        # MovedError is a kind of AskError in redis-py.
        return not isinstance(self.error, MovedError), str(self.error.host), int(self.error.port)

    @property
    def ask(self) -> bool:
        """Whether the other server answers only what follows ASKING."""
        return self.target is not None and self.target[0]

    def prepare(self, commands: Sequence[Command]) -> list[Command]:
        """Return the commands of the request to be sent again, as the other server wants them."""
        again = [commands[index] for index in self.indices]
        if not self.ask:
            return again
        if self.whole:
            return [_ASKING, *again]
        return [part for command in again for part in (_ASKING, command)]

    def merge(self, replies: Replies, answers: Replies, lost: ConnectionLost | None = None) -> None:
        """Put what the other server answered where it belongs among all replies, in place.

        `lost` stands for each missing answer; it must not be raised for the whole request, whose
        other commands were carried out.
        """
        if self.ask:
            answers = answers[1:] if self.whole else answers[1::2]
        missing = [lost] * (len(self.indices) - len(answers))
        for index, answer in zip(self.indices, [*answers, *missing], strict=True):
            replies[index] = answer


def find_redirects(commands: Sequence[Command], replies: Replies) -> list[Redirect]:
    """Return which commands to send where again; empty if none was refused.

    A transaction is refused as a whole: it was aborted. Other commands may come before it.
    """
    refused = {i: reply for i, reply in enumerate(replies) if is_slot_refusal(reply)}
    if not refused:
        return []
    start = commands.index(MULTI) if MULTI in commands else len(commands)
    found: dict[Target, Redirect] = {}
    whole: list[Redirect] = []
    for index, error in refused.items():
        if index >= start:
            whole = [Redirect([*range(start, len(commands))], error, whole=True)]
            break
        redirect = Redirect([index], error, whole=False)
        same = found.setdefault(redirect.target, redirect)
        if same is not redirect:
            same.indices.append(index)
    return [*found.values(), *whole]


class Again(NamedTuple):
    """What goes to one server again, in one write.

    Attributes:
        target: Which server.
        parts: Each request and what of it.
    """

    target: Target
    parts: list[tuple[Sent, Redirect]]

    @property
    def key(self) -> str:
        """A key for which the server is asked."""
        return self.parts[0][0].key

    @property
    def commands(self) -> list[Command]:
        """All commands, as the server wants them."""
        return [c for sent, redirect in self.parts for c in redirect.prepare(sent.commands)]

    def merge(self, answers: Replies, lost: ConnectionLost | None = None) -> None:
        """Put all answers in their places; `lost` stands for each that is missing."""
        start = 0
        for sent, redirect in self.parts:
            count = len(redirect.prepare(sent.commands))
            redirect.merge(sent.replies, answers[start : start + count], lost)
            start += count


def find_again(requests: Sequence[Sent]) -> list[Again]:
    """Return what of some requests has to be sent again, in one part for each server.

    What was refused by TRYAGAIN is grouped by its key: only that names the server.
    """
    groups: dict[object, Again] = {}
    for sent in requests:
        for redirect in find_redirects(sent.commands, sent.replies):
            target = redirect.target
            group = groups.setdefault(target or sent.key, Again(target, []))
            group.parts.append((sent, redirect))
    return list(groups.values())


def may_wait(request: Request | Pipeline) -> bool:
    """Return whether a request waits for a slot that moves."""
    return not isinstance(request, Request) or request.waits


def no_server(key: str, error: Exception) -> RedisConnectionError:
    """Return the error for a key whose server is not known."""
    return RedisConnectionError(f"no server of the cluster is known to have key {key!r}: {error}")


class Rounds:
    """How often, and after which pauses, what a slot that moves has held up is sent again.

    Args:
        began: When it was refused first, in seconds.
        until: When to give up, by the same clock; None: after MOVING_SECONDS.
        waits: Without it, only redirections are followed, and other refusals are the answer.
    """

    def __init__(self, began: float, until: float | None = None, *, waits: bool = True) -> None:
        self._began = began
        self._waits = waits
        latest = began + (MOVING_SECONDS if waits else 0.0)
        self._until = latest if until is None else min(until - MARGIN_S, latest)
        self._redirects = 0
        self._pause_s = SHORTEST_PAUSE_S

    def pause(self, now: float, *, redirected: bool) -> float | None:
        """Return the seconds to wait before the next round; None: give up.

        Args:
            now: The time.
            redirected: Whether all of it is refused by MOVED or ASK, which name another server.
        """
        self._redirects += redirected
        if redirected and self._redirects <= MAX_REDIRECTS:
            return 0.0
        # Those that wait for the same slot do not come back at the same moment.
        pause_s = self._pause_s * random.uniform(0.5, 1.0)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s if now + pause_s < self._until else None

    def explain(self, sent: Sent, now: float) -> None:
        """Replace what is still refused of a request, after a wait, by an error that says so."""
        if not self._waits:
            return
        for redirect in find_redirects(sent.commands, sent.replies):
            error = moved_too_long(sent.key, now - self._began, redirect.error)
            for index in redirect.indices:
                sent.replies[index] = error
