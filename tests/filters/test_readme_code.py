"""The README's Python runs as printed and does what its comments say."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path

import redis

import bloomlock

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)


def test_the_set_like_example(valkey, monkeypatch):
    redis.Redis.from_url(valkey).flushall()
    monkeypatch.setenv("BLOOMLOCK_URL", valkey)
    code = next(block for block in BLOCKS if "bloomlock.list_filters" in block)
    assert run_with_comments(code) >= 4
    assert redis.Redis.from_url(valkey).dbsize() == 0


def test_the_example_in_one_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = next(block for block in BLOCKS if "MemoryBloomFilter" in block)
    assert run_with_comments(code) == 4


def run_with_comments(code):
    """Run the statements; one whose comment is a value must give it. Returns how many did."""
    names = {}
    checked = 0
    for statement, line in statements(code):
        comment = line.rpartition("# ")[2]
        try:
            expected = ast.literal_eval(comment)
        except (SyntaxError, ValueError):
            exec(statement, names)  # noqa: S102 - it is ours
        else:
            assert eval(statement, names) == expected  # noqa: S307 - it is ours
            checked += 1
    return checked


def statements(code):
    lines = code.splitlines()
    for node in ast.parse(code).body:
        yield ast.unparse(node), lines[node.lineno - 1]


def test_the_asyncio_example(valkey, monkeypatch):
    redis.Redis.from_url(valkey).flushall()
    monkeypatch.setenv("BLOOMLOCK_URL", valkey)
    code = next(block for block in BLOCKS if "AsyncBloomFilter" in block)
    body = "".join(f"    {line}\n" for line in code.splitlines())
    names = {"bloomlock": bloomlock}
    exec(f"async def example():\n{body}    return new\n", names)  # noqa: S102 - it is ours
    assert inspect.iscoroutinefunction(names["example"])
    assert asyncio.run(names["example"]()) is True
