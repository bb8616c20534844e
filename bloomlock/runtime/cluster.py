"""What a cluster answers when a slot has moved. Pure.

https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/ (MOVED and ASK). A
redirected command was not carried out, so sending it again is safe even for an update; its
neighbours in the same request may have been, so only the redirected ones are sent again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.exceptions import AskError, MovedError

from bloomlock.effects import MULTI, encode_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.effects import Command, ConnectionLost, Replies

MAX_REDIRECTS = 5
_ASKING = encode_command("ASKING")


@dataclass(frozen=True, slots=True)
class Redirect:
    """Commands of one request that another server has to answer.

    Attributes:
        indices: Which commands of the request.
        ask: Whether the slot is only being moved (ASK), else it has moved (MOVED).
        host: Where to.
        port: Where to.
        whole: Whether the commands are one transaction, for which ASKING is said once.
    """

    indices: list[int]
    ask: bool
    host: str
    port: int
    whole: bool

    def prepare(self, commands: Sequence[Command]) -> list[Command]:
        """Return the commands as the other server wants them."""
        if not self.ask:
            return list(commands)
        if self.whole:
            return [_ASKING, *commands]
        return [part for command in commands for part in (_ASKING, command)]

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
    """Return where to send which commands again; empty if none was redirected.

    A transaction is redirected as a whole: it was aborted.
    """
    moved = {
        i: reply for i, reply in enumerate(replies) if isinstance(reply, (AskError, MovedError))
    }
    if not moved:
        return []
    whole = commands[0] == MULTI
    if whole:
        moved = dict.fromkeys(range(len(replies)), next(iter(moved.values())))
    targets: dict[tuple[bool, str, int], list[int]] = {}
    for index, error in moved.items():
        # MovedError is a kind of AskError in redis-py.
        ask = not isinstance(error, MovedError)
        targets.setdefault((ask, str(error.host), int(error.port)), []).append(index)
    return [Redirect(indices, *target, whole) for target, indices in targets.items()]
