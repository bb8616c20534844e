"""The pages about locks: every block runs as printed and does what its comments say."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis

import bloomlock

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "locks.md").read_text("utf-8")
BROKEN = (ROOT / "docs" / "broken-locks.md").read_text("utf-8")
URL = "redis://localhost:6379/0"


def sections():
    """Each part under a heading of the second level, with its blocks in order.

    The broken locks build upon each other, so their page is one part.
    """
    parts = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    for title, text in (*pairs, ("broken locks", BROKEN)):
        blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        if blocks:
            yield pytest.param(blocks, id=title.replace(" ", "-"))


class Compare(ast.NodeTransformer):
    """Makes `expression  # literal` a comparison, at any depth."""

    def __init__(self, code):
        self._lines = code.splitlines()
        self.count = 0

    def visit_Expr(self, node):
        line = self._lines[node.end_lineno - 1]
        try:
            expected = ast.literal_eval(line.rpartition("  # ")[2])
        except (SyntaxError, ValueError):
            return node
        self.count += 1
        call = ast.Call(
            ast.Name("compare", ast.Load()),
            [node.value, ast.Constant(expected), ast.Constant(line.strip())],
            [],
        )
        return ast.copy_location(ast.Expr(call), node)


def compare(value, expected, line):
    assert value == expected, line


def run_python(code, names, runner, url):
    shown = Compare(code)
    tree = ast.fix_missing_locations(shown.visit(ast.parse(code.replace(URL, url))))
    compiled = compile(tree, "locks.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    outcome = eval(compiled, names)  # noqa: S307 - it is ours
    if inspect.iscoroutine(outcome):
        runner.run(outcome)
    return shown.count


def run_shell(code, url):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "BLOOMLOCK_URL": url}
    subprocess.run(["sh", "-euc", code], check=True, env=environment, timeout=100)


@pytest.mark.parametrize("blocks", list(sections()))
def test_a_section_runs_as_printed(blocks, valkey, monkeypatch):
    redis.Redis.from_url(valkey).flushall()
    monkeypatch.setenv("BLOOMLOCK_URL", valkey)
    names = {"compare": compare}
    with asyncio.Runner() as runner:
        for language, code in blocks:
            if language == "sh":
                run_shell(code, valkey)
            else:
                assert language == "python"
                run_python(code, names, runner, valkey)


def test_comments_are_compared(valkey):
    with asyncio.Runner() as runner:
        assert run_python("if 1:\n    1 + 1  # 2\n", {"compare": compare}, runner, valkey) == 1
        with pytest.raises(AssertionError, match="1 \\+ 1  # 3"):
            run_python("if 1:\n    1 + 1  # 3\n", {"compare": compare}, runner, valkey)


def test_the_steps_of_the_page_are_those_the_tests_run():
    sources = [path.read_text("utf-8") for path in Path(__file__).parent.glob("[!t]*.py")]
    blocks = re.findall(r"^```python\n(.*?)^```", BROKEN, re.MULTILINE | re.DOTALL)
    for block in blocks:
        step = re.sub(r"\A((import|from) .*\n|\n)*", "", block).strip()
        assert any(step in source for source in sources), step
    steps = {step for source in sources for step in re.findall(r'"""(Step \d+[a-d]?):', source)}
    assert steps == set(re.findall(r'"""(Step \d+[a-d]?):', BROKEN))


@pytest.mark.parametrize("page", [PAGE, BROKEN], ids=["locks", "broken-locks"])
def test_every_link_inside_a_page_leads_somewhere(page):
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#(.*?)\)", page)) <= anchors


def test_every_parameter_of_a_lock_is_explained():
    parameters = set(inspect.signature(bloomlock.Lock).parameters) - {"name"}
    assert {name for name in parameters if f"`{name}" not in PAGE} == set()
