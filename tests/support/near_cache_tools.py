"""Time, round trips and replies of a filter with a near-cache, held in the hand of a test."""

from __future__ import annotations

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from bloomlock.effects import ConnectionLost, Pipeline, Request

MANY = 10_000


class Clock:
    now = 5000.0

    def __call__(self):
        return self.now

    def of(self, made):
        """Let an object have this clock; return it."""
        made._state.near_clock = self
        made._state.drop_cached()
        return made


def is_kept(made, item):
    """Whether an object answers for an item without its server."""
    near = made._state.near
    return near is not None and near.knows(item)


def trips(client):
    """Commands that tested or set bits, whatever the strategy."""
    names = ("bitfield", "evalsha", "setbit", "getbit", "bf.insert", "bf.mexists")
    stats = client.info("commandstats").items()
    return sum(value["calls"] for name, value in stats if name.split("_")[1] in names)


def slowly(core, clock, seconds):
    """Carry out a core while time goes by between request and reply."""
    step = next(core)
    try:
        while True:
            answer = yield step
            if isinstance(step, Request):
                clock.now += seconds
            step = core.send(answer)
    except StopIteration as stop:
        return stop.value


def until_request(core):
    step = next(core)
    while not isinstance(step, (Request, Pipeline)):
        step = core.send(None)
    return step


def only(step):
    return (yield step)


def hold(core, runtime):
    """Carry out a core up to its request, but keep back the reply; return what sends it."""
    replies = runtime.run(only(until_request(core)))

    def go_on():
        with pytest.raises(StopIteration) as stop:
            core.send(replies)
        return stop.value.value

    return go_on


def lose_reply(core):
    until_request(core)
    try:
        core.throw(ConnectionLost(RedisConnectionError("lost"), sent=True, replies=[]))
    except StopIteration as stop:
        return stop.value
