"""Walks by chance over all features of filters at once; see feature_walk."""

from __future__ import annotations

from collections import Counter

import pytest
from feature_walk import KINDS, Walk
from moved_clock import stopped_server

ROUNDS, STEPS = 3, 100
MANY = 400


def walk(folder, kind, seed, rounds):
    what = Counter()
    with stopped_server("valkey", folder) as server:
        for number in range(rounds):
            server[0].flushall()
            one = Walk(server, kind, f"{seed}/{number}", folder)
            try:
                one.run(STEPS)
            except BaseException as error:
                error.add_note(str(one))
                raise
            what += one.what
    print(what)
    return what


@pytest.mark.parametrize("kind", KINDS)
def test_each_answer_is_that_of_the_model(tmp_path, kind, seed):
    what = walk(tmp_path, kind, seed, ROUNDS)
    assert what["lose_reply"]
    assert what["discarded"] or kind == "plain"


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_each_answer_of_many_walks(tmp_path, kind, seed):
    walk(tmp_path, kind, seed, MANY)
