"""The pages about locks: every block runs as printed and does what its comments say."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pages
import pytest
import redis
import road

import bloomlock
from bloomlock.locks.options import LockParameters

PAGE = pages.read("docs/locks.md")
LIBRARIES = pages.read("docs/lock-libraries.md")
BROKEN = pages.read("docs/broken-locks.md")
# The broken locks build upon each other, so their page is one part.
PARTS = {
    **dict(pages.sections(PAGE)),
    **dict(pages.sections(LIBRARIES)),
    "broken-locks": pages.blocks_of(BROKEN),
}


@pytest.mark.parametrize("blocks", PARTS.values(), ids=PARTS)
def test_a_section_runs_as_printed(blocks, valkey, monkeypatch):
    redis.Redis.from_url(valkey).flushall()
    monkeypatch.setenv("BLOOMLOCK_URL", valkey)
    pages.run(blocks, valkey)


def test_the_steps_of_the_page_are_those_the_tests_run():
    sources = [path.read_text("utf-8") for path in Path(road.__file__).parent.glob("*.py")]
    blocks = re.findall(r"^```python\n(.*?)^```", BROKEN, re.MULTILINE | re.DOTALL)
    for block in blocks:
        step = re.sub(r"\A((import|from) .*\n|\n)*", "", block).strip()
        assert any(step in source for source in sources), step
    steps = {step for source in sources for step in re.findall(r'"""(Step \d+[a-d]?):', source)}
    assert steps == set(re.findall(r'"""(Step \d+[a-d]?):', BROKEN))


def test_every_parameter_of_a_lock_is_explained():
    parameters = {*inspect.signature(bloomlock.Lock).parameters, *LockParameters.__annotations__}
    parameters -= {"name", "options"}
    assert len(parameters) > 10
    assert {name for name in parameters if f"`{name}" not in PAGE} == set()
