"""Requests to several servers at once: what goes together, and what is known after a cut."""

from __future__ import annotations

import pytest

from bloomlock.commands import in_parallel, outcomes_of, send_with_retry
from bloomlock.effects import ConnectionLost, Parallel, Pause, Request, Transaction


def steps_of(core):
    """Return the steps of a core that gets an empty list of replies to each request."""
    steps = []
    answer = None
    try:
        while True:
            step = core.send(answer)
            steps.append(step)
            answer = [[b"1"]] * len(step.requests) if isinstance(step, Parallel) else [b"1"]
    except StopIteration as stop:
        return steps, stop.value


def asks(count, result):
    for number in range(count):
        yield Request(f"{result} {number}", [b"x"])
    return result


def transacts(count, result):
    for number in range(count):
        yield Transaction(f"{result} {number}", [b"x"], None)
    return result


def test_cores_of_different_lengths_go_together_and_keep_their_results():
    steps, results = steps_of(in_parallel([asks(1, "a"), asks(3, "b"), asks(0, "c"), asks(2, "d")]))
    assert results == ["a", "b", "c", "d"]
    assert [[request.key for request in step.requests] for step in steps] == [
        ["a 0", "b 0", "d 0"], ["b 1", "d 1"], ["b 2"],
    ]  # fmt: skip


def test_few_at_once_and_one_alone():
    steps, results = steps_of(in_parallel([asks(1, "a"), asks(1, "b"), asks(1, "c")], 2))
    assert results == ["a", "b", "c"]
    assert isinstance(steps[0], Parallel)
    assert steps[1] == Request("c 0", [b"x"])


def test_a_core_with_transactions_is_carried_out_to_its_end_before_the_others_go_on():
    steps, results = steps_of(in_parallel([asks(2, "a"), transacts(2, "b"), asks(1, "c")]))
    assert results == ["a", "b", "c"]
    assert [step.key for step in steps[:2]] == ["b 0", "b 1"]


def test_pauses_are_one_pause():
    def pausing(seconds):
        yield Request("k", [b"x"])
        yield Pause(seconds)
        yield Request("k", [b"x"])
        return seconds

    steps, results = steps_of(in_parallel([pausing(1), pausing(3), pausing(2)]))
    assert results == [1, 3, 2]
    assert [step for step in steps if isinstance(step, Pause)] == [Pause(3)]
    assert len(steps) == 3


def test_only_what_was_not_sent_is_sent_again():
    """Of three requests the first was answered, the second cut off, the third never left."""

    def asking(key):
        try:
            return (yield from send_with_retry(Request(key, [b"x"]), repeatable=False))
        except ConnectionLost as lost:
            return lost.sent

    core = in_parallel([asking("a"), asking("b"), asking("c")])
    requests = next(core).requests
    lost = ConnectionLost(OSError(), sent=True, replies=[1], written=2)
    assert core.send(outcomes_of(requests, [1], lost)) == Pause(0.0)
    assert [request.key for request in core.send(None).requests] == ["c"]
    with pytest.raises(StopIteration) as ended:
        core.send([[3]])
    assert ended.value.value == [[1], True, [3]]
