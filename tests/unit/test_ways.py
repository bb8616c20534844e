"""A step in several ways: which way is taken, what goes on to the next, what is not tried again."""

from __future__ import annotations

import pytest
from redis.exceptions import NoPermissionError, NoScriptError, OutOfMemoryError, ResponseError

from bloomlock.delivery import Way, run_way, run_ways
from bloomlock.effects import ConnectionLost, Pause

NOT_LOADED = NoScriptError("no matching script")
FORBIDDEN = NoPermissionError("this user may not")
UNKNOWN = ResponseError("unknown command 'DELEX'")
FULL = OutOfMemoryError("command not allowed")
LOST = ConnectionLost(TimeoutError(), sent=True, replies=[])


class Steps:
    """Ways that answer each item by what is said here, and note what they were given."""

    def __init__(self, **answers):
        self.sent = []
        self.answers = answers

    def way(self, name, needs, **options):
        def send(items):
            self.sent.append((name, list(items)))
            yield Pause(0.0)
            return [self.answers[name].get(item, f"{name} {item}") for item in items]

        return Way(needs, send, **options)


def finish(core):
    try:
        while True:
            next(core)
    except StopIteration as stop:
        return stop.value


def three(steps):
    return steps.way("digest", "scripts"), steps.way("source", "scripts"), steps.way("watch", "")


def test_the_first_way_that_is_not_refused_is_the_only_one():
    steps, missing = Steps(digest={}), set()
    assert finish(run_ways(three(steps), [1, 2], missing)) == ["digest 1", "digest 2"]
    assert steps.sent == [("digest", [1, 2])]
    assert not missing


def test_only_what_was_refused_goes_on_and_answers_stay_in_order():
    steps, missing = Steps(digest={2: NOT_LOADED}, source={}), set()
    answers = finish(run_ways(three(steps), [1, 2, 3], missing))
    assert answers == ["digest 1", "source 2", "digest 3"]
    assert steps.sent[1:] == [("source", [2])]
    assert not missing, "a script that is not loaded is loaded by the next way"


@pytest.mark.parametrize("refusal", [FORBIDDEN, UNKNOWN])
def test_what_the_server_lacks_is_not_tried_again(refusal):
    steps, missing = Steps(digest={1: refusal, 2: refusal}, source={}, watch={}), set()
    assert finish(run_ways(three(steps), [1, 2], missing)) == ["watch 1", "watch 2"]
    assert missing == {"scripts"}
    assert [name for name, _ in steps.sent] == ["digest", "watch"], "the need of both is missing"
    steps.sent.clear()
    assert finish(run_way(three(steps), 3, missing)) == "watch 3"
    assert steps.sent == [("watch", [3])]


@pytest.mark.parametrize("error", [FULL, LOST])
def test_other_errors_are_answers(error):
    steps = Steps(digest={1: error})
    assert finish(run_ways(three(steps), [1, 2], set())) == [error, "digest 2"]
    with pytest.raises(type(error)):
        finish(run_way(three(steps), 1, set()))


def test_a_way_may_refuse_more():
    steps, missing = Steps(first={1: FULL}, second={}), set()
    first = steps.way("first", "x", is_refused=lambda error: isinstance(error, ResponseError))
    assert finish(run_ways([first, steps.way("second", "")], [1], missing)) == ["second 1"]
    assert not missing, "it may have room another time"


def test_the_last_way_is_tried_whatever_is_known():
    steps, missing = Steps(watch={1: FORBIDDEN}), {"watch"}
    assert finish(run_ways([steps.way("watch", "watch")], [1], missing)) == [FORBIDDEN]


def test_no_items_have_no_answers():
    assert finish(run_ways(three(Steps(digest={})), [], set())) == []
