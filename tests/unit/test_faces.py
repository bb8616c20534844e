"""Classes for threads are what the tool makes of those for asyncio, whose examples are true too."""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "async_to_sync.py"
SOURCES = sorted(ROOT.glob("bloomlock/**/_async/*.py"))
EXAMPLES = {
    found.name.removeprefix("bloomlock."): found
    for path in SOURCES
    for found in doctest.DocTestFinder().find(
        import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    )
    if found.examples
}

pytestmark = pytest.mark.quick


def test_the_classes_for_threads_are_what_the_tool_writes():
    done = subprocess.run(
        [sys.executable, TOOL, "--check"], check=False, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_the_tool_tells_what_is_not_as_it_writes_it(tmp_path, monkeypatch, capsys):
    main = runpy.run_path(str(TOOL))["main"]
    (source := tmp_path / "_async").mkdir()
    (source / "one.py").write_text("async def close(a: AsyncLock) -> None: ...\n")
    monkeypatch.setitem(main.__globals__, "ROOT", tmp_path)
    monkeypatch.setitem(main.__globals__, "SOURCES", (source,))
    monkeypatch.setattr(sys, "argv", ["tool", "--check"])
    assert main() == 1
    assert capsys.readouterr().out == "_sync/one.py: is not what the tool writes\n"


@pytest.mark.parametrize("found", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_for_asyncio_is_true(found):
    """As `python -m asyncio` runs it."""
    with asyncio.Runner() as runner:
        for example in found.examples:
            code = compile(example.source, found.name, "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            shown = StringIO()
            with redirect_stdout(shown):
                if inspect.iscoroutine(made := eval(code, found.globs)):  # noqa: S307 - our own
                    runner.run(made)
            assert shown.getvalue() == example.want
