"""The benchmarks are no part of the installed package: they are run from the checkout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


def run_benchmarks(*arguments: str) -> str:
    # PLC0415: the path of the checkout is known by now.
    from benchmarks.cli import main  # noqa: PLC0415

    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


@pytest.fixture(scope="session")
def benchmarks() -> Callable[..., str]:
    """Run the command line and return what it printed."""
    return run_benchmarks


@pytest.fixture
def benchmark(tmp_path: Path) -> Callable[..., tuple[str, dict[str, Any]]]:
    """Run a suite with some contenders; return what it printed and what it wrote."""

    def benchmark(
        suite: str, contenders: tuple[str, ...], *more: str
    ) -> tuple[str, dict[str, Any]]:
        chosen = [word for name in contenders for word in ("--contender", name)]
        where = ("--results", str(tmp_path))
        out = run_benchmarks("run", suite, "--quick", *where, *chosen, *more)
        return out, json.loads((tmp_path / f"{suite}.json").read_text())

    return benchmark
