"""`import bloomlock` is quick: names come at their first use, and one add takes no numpy."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib import import_module

import pytest

import bloomlock
from bloomlock import errors


def modules_after(code: str, **variables: str) -> set[str]:
    """What a new process has imported when it has run the code."""
    shown = "\nimport sys; print('modules:', *sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code + shown],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return set(done.stdout.rpartition("modules: ")[2].split())


def test_the_package_alone_imports_nothing_else():
    found = modules_after("import bloomlock")
    assert {name for name in found if name.startswith("bloomlock")} == {"bloomlock"}
    assert not found & {"asyncio", "numpy", "redis", "mmh3", "click", "rich"}


@pytest.mark.thorough
@pytest.mark.parametrize("pure", ["0", "1"])
def test_adding_one_item_imports_no_numpy(r, valkey, pure):
    code = (
        f"from bloomlock import BloomFilter; made = BloomFilter('x', 1000, client='{valkey}')\n"
        "assert made.add('a') and not made.add('a') and made.exists('a') and 'b' not in made"
    )
    found = modules_after(code, BLOOMLOCK_PURE=pure)
    assert ("bloomlock._speed" in found) <= (pure == "0")
    assert not found & {"numpy", "click", "rich", "bloomlock.filters._async.bloom"}


def test_few_names_are_public():
    assert len(bloomlock.__all__) <= 40
    code = "import bloomlock; bloomlock.catalog.list_filters; bloomlock.errors.BloomlockError"
    assert {"bloomlock.catalog", "bloomlock.errors"} < modules_after(code)


@pytest.mark.parametrize("package", [bloomlock, bloomlock.catalog, bloomlock.server, errors])
def test_what_is_public_has_docstrings(package):
    names = getattr(package, "__all__", [name for name in vars(package) if name[0].isupper()])
    for name in names:
        found = getattr(package, name)
        assert inspect.getdoc(found), name
        for attribute in vars(found) if isinstance(found, type) else ():
            member = getattr(found, attribute)
            if attribute[0] != "_" and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(member), (name, attribute)


@pytest.mark.parametrize("name", bloomlock.__all__)
def test_a_public_name_is_that_of_its_module(name):
    found = getattr(bloomlock, name)
    assert name in dir(bloomlock)
    assert getattr(import_module(getattr(found, "__module__", "bloomlock")), name) is found


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="module 'bloomlock' has no attribute 'Bloom'"):
        bloomlock.Bloom  # noqa: B018 - the look-up is what raises
