"""Runs the code of a Markdown page as printed; a comment that is a value is what the line gives."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
URL = "redis://localhost:6379/0"

Block = tuple[str, str]


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of Python and shell in order; one with a title is a file, and not run."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(language, code) for language, code in found if language in {"python", "sh"}]


def sections(page: str) -> Iterator[tuple[str, list[Block]]]:
    """Yield each heading of the second level whose part has code, with that code."""
    parts = re.split(r"^## (.*)$", page, flags=re.MULTILINE)
    for title, text in zip(["top", *parts[1::2]], parts[::2], strict=True):
        if blocks := blocks_of(text):
            yield title.replace(" ", "-"), blocks


class _Compare(ast.NodeTransformer):
    """Makes `expression  # literal` a comparison, at any depth."""

    def __init__(self, code: str) -> None:
        self._lines = code.splitlines()
        self.count = 0

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        line = self._lines[(node.end_lineno or node.lineno) - 1]
        try:
            expected = ast.literal_eval(line.rpartition("  # ")[2])
        except (SyntaxError, ValueError):
            return node
        self.count += 1
        call = ast.Call(
            ast.Name("compare", ast.Load()),
            [node.value, ast.parse(repr(expected), mode="eval").body, ast.Constant(line.strip())],
            [],
        )
        return ast.copy_location(ast.Expr(call), node)


def _compare(value: object, expected: object, line: str) -> None:
    assert value == expected, line


def run_python(code: str, names: dict[str, Any], runner: asyncio.Runner, url: str) -> int:
    shown = _Compare(code)
    tree = ast.fix_missing_locations(shown.visit(ast.parse(code.replace(URL, url))))
    compiled = compile(tree, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    names["compare"] = _compare
    outcome = eval(compiled, names)  # noqa: S307 - it is ours
    if inspect.iscoroutine(outcome):
        runner.run(outcome)
    return shown.count


def run_shell(code: str, url: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "BLOOMLOCK_URL": url}
    subprocess.run(["sh", "-euc", code], check=True, env=environment, timeout=100)


def run(blocks: list[Block], url: str) -> int:
    """Run the blocks of a section one after the other, in one namespace; return the comparisons."""
    names: dict[str, Any] = {}
    compared = 0
    with asyncio.Runner() as runner:
        for language, code in blocks:
            if language == "sh":
                run_shell(code, url)
            else:
                assert language == "python"
                compared += run_python(code, names, runner, url)
    return compared
