"""The strategy "native", by BF.INSERT and BF.MEXISTS: the Bloom filter is the server's own.

https://redis.io/docs/latest/commands/bf.insert/ and /bf.mexists/. Redis 8 has them built in; the
modules RedisBloom (from 2.4.4 on, which has BF.CARD) and valkey-bloom bring them elsewhere.

A shard is two keys: a string with the header, and the server's filter, whose key has the generation
in its name. With NOCREATE an update of an older generation is an error and changes nothing.
BF.MEXISTS answers 0 if there is no key, so EXISTS follows it. The header is read last in the same
round trip, and a generation never returns.
"""

from __future__ import annotations

from operator import not_
from typing import TYPE_CHECKING

from hiredis import pack_command
from redis.exceptions import ResponseError

from bloomlock.commands import encode_command, send_or_lost, send_with_retry
from bloomlock.descriptor import generation_of, header_from_bytes
from bloomlock.effects import ConnectionLost, Core, Pipeline, Replies, Request
from bloomlock.errors import ConfigurationError, FilterMismatchError
from bloomlock.keys import native_key
from bloomlock.refusals import is_missing

from .base import Segment, Strategy, error_of, header_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bloomlock.descriptor import Descriptor

    from .base import Segments, Shard

ITEMS_PER_COMMAND = 2000
"""About 2 ms of the server's time."""

_NO_KEY = "not found"


class NativeStrategy(Strategy):
    name = "native"
    bits_per_exchange = 2**18

    def __init__(self) -> None:
        self._is_checked = False

    def check_filter(self, name: str, stored: Descriptor) -> None:
        if not stored.native:
            raise FilterMismatchError(
                f"filter {name!r} is a bitmap, which strategy 'native' cannot read; attach to it "
                "with another strategy"
            )

    def check_server(self, key: str) -> Core[None]:
        if self._is_checked:
            return
        probe = native_key(key, 0)
        commands = [
            encode_command("BF.INSERT", probe, "NOCREATE", "ITEMS", ""),
            encode_command("BF.MEXISTS", probe, ""),
            encode_command("BF.CARD", probe),
        ]
        try:
            replies = yield from send_with_retry(Request(key, commands), repeatable=True)
        except ConnectionLost as lost:
            raise lost.cause from None
        for reply in replies:
            if isinstance(reply, Exception) and not is_no_key(reply):
                if not is_missing(reply):
                    raise reply
                raise ConfigurationError(
                    "strategy 'native' needs BF.INSERT, BF.MEXISTS and BF.CARD (Redis 8, "
                    f"RedisBloom or valkey-bloom), and the server refuses them ({reply}); use "
                    "another strategy, such as 'atomic'"
                ) from None
        self._is_checked = True

    def ask_shard(self, shard: Shard, items: Sequence[bytes], *, write: bool) -> Core[Segments]:
        starts = range(0, len(items), ITEMS_PER_COMMAND)
        parts = [items[start : start + ITEMS_PER_COMMAND] for start in starts]

        def writes() -> Iterator[list[bytes]]:
            for part in parts:
                commands = _commands(shard, part, write)
                yield commands if part is parts[-1] else commands[:1]

        request: Request | Pipeline
        if len(parts) == 1:
            request = Request(shard.key, next(writes()))
        else:
            request = Pipeline(shard.key, len(parts) + (1 if write else 2), writes)
        replies = yield from send_or_lost(request, repeatable=not write)
        return _segments(shard, list(map(len, parts)), replies, write)


def _commands(shard: Shard, items: Sequence[bytes], write: bool) -> list[bytes]:
    own = native_key(shard.key, generation_of(shard.header))
    words = ("BF.INSERT", own, "NOCREATE", "ITEMS") if write else ("BF.MEXISTS", own)
    ending = [] if write else [encode_command("EXISTS", own)]
    return [pack_command((*words, *items)), *ending, header_command(shard.key)]


def _segments(shard: Shard, counts: Sequence[int], replies: Replies, write: bool) -> list[Segment]:
    answers, proofs, whole = replies[: len(counts)], replies[len(counts) :], sum(counts)
    lost = next((proof for proof in proofs if isinstance(proof, Exception)), None)
    if lost is None:
        header = header_from_bytes(proofs[-1])
        if header != shard.header or 0 in proofs:
            return [Segment(whole, header if header != shard.header else 0)]
    elif not write:
        return [Segment(whole, error=lost)]
    segments: list[Segment] = []
    for count, answer in zip(counts, answers, strict=True):
        if is_no_key(answer):
            # The header is right, or its reply was lost.
            segments.append(Segment(count, error=lost))
        else:
            segments += _answered(shard, count, answer, write)
    return segments


def _answered(shard: Shard, count: int, reply: object, write: bool) -> list[Segment]:
    """Read the answer of one command; the server may have refused the last items of an update."""
    if not isinstance(reply, list) or not reply:
        return [Segment(count, error=error_of(reply))]
    refused = reply[-1] if isinstance(reply[-1], Exception) else None
    answers = reply if refused is None else reply[:-1]
    missing = list(map(bool if write else not_, answers))
    segment = Segment(len(answers), shard.header, missing)
    if len(answers) == count:
        return [segment]
    rest = Segment(count - len(answers), error=error_of(refused))
    return [segment, rest] if answers else [rest]


def is_no_key(reply: object) -> bool:
    return isinstance(reply, ResponseError) and _NO_KEY in str(reply)
