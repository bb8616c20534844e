"""The benchmarks are no part of the installed package: they are run from the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


def run_module(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def module() -> Callable[..., str]:
    """Run `python -m` from the checkout and return what it printed."""
    return run_module


@pytest.fixture
def benchmark(tmp_path: Path) -> Callable[..., tuple[str, dict[str, Any]]]:
    """Run a suite with some contenders; return what it printed and what it wrote."""

    def benchmark(
        suite: str, contenders: tuple[str, ...], *more: str
    ) -> tuple[str, dict[str, Any]]:
        chosen = [word for name in contenders for word in ("--contender", name)]
        where = ("--results", str(tmp_path))
        out = run_module("benchmarks", "run", suite, "--quick", *where, *chosen, *more)
        return out, json.loads((tmp_path / f"{suite}.json").read_text())

    return benchmark
