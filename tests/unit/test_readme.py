"""What the README tells people to type is what is tested."""

from __future__ import annotations

from pathlib import Path

from bloomlock.strategies import STRATEGIES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def commands_of(text):
    return [line.strip() for line in text.splitlines() if line.startswith("    pip install")]


def test_ci_runs_the_test_command_of_the_readme():
    _, tests = commands_of(README)
    assert tests in (ROOT / ".ci" / "run").read_text("utf-8").splitlines()


def test_every_strategy_is_explained():
    for name in STRATEGIES:
        assert f"`{name}`" in README
