"""The public names are imported at their first use, and are those that type checkers see."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import bloomlock

LAZY = bloomlock._MODULES


def checked_imports() -> dict[str, str]:
    """What the block under TYPE_CHECKING imports: names by their modules."""
    tree = ast.parse(Path(bloomlock.__file__).read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: f".{node.module}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_type_checkers_see_the_same_names():
    assert checked_imports() == LAZY


@pytest.mark.parametrize("name", bloomlock.__all__)
def test_a_name_is_that_of_its_module(name):
    found = getattr(bloomlock, name)
    assert name in dir(bloomlock)
    if name in LAZY:
        assert found is getattr(import_module(LAZY[name], "bloomlock"), name)


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="module 'bloomlock' has no attribute 'Bloom'"):
        bloomlock.Bloom  # noqa: B018 - the look-up is what raises
