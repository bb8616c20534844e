"""Imports point downwards only, and what stands above the library uses its public names."""

from __future__ import annotations

import ast
import collections
import functools
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# From the bottom up; a module may import from its own layer and from those before it.
LAYERS = [
    {"errors", "arrays", "_speed"},
    {"compiled"},
    {"sizing", "keys"},
    {"blocked", "native", "windows", "growth", "hash_keys"},
    {"hashing", "bitmaps"},
    {"shard_hashing"},
    {"descriptor"},
    {"parameters"},
    {"stored_descriptor"},
    {"planning"},
    {"commands", "refusals"},
    {"effects"},
    {"delivery"},
    {"parallel", "slot_moves"},
    {"scripts"},
    {"locks.protocol"},
    {"strategies"},
    {"claims"},
    {"server"},
    {"runtime"},
    {"locks"},
    {"filters"},
    {"idempotency"},
    {""},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
PURE = {
    "errors",
    "arrays",
    "sizing",
    "keys",
    "blocked",
    "native",
    "windows",
    "growth",
    "hash_keys",
    "hashing",
    "shard_hashing",
    "bitmaps",
    "descriptor",
    "parameters",
    "stored_descriptor",
    "planning",
    "commands",
    "refusals",
    "effects",
    "delivery",
    "parallel",
    "slot_moves",
    "locks.protocol",
    "claims",
    "strategies",
}
IMPURE_MODULES = {"socket", "time", "asyncio", "threading", "subprocess", "os", "redis.client"}
SINGLE = 9
"""Modules that one other imports, at most."""
PUBLIC = {"bloomlock", "bloomlock.server", "bloomlock.errors"}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def place_of(path: Path) -> str:
    parts = path.relative_to(ROOT / "bloomlock").with_suffix("").parts
    return "" if parts == ("__init__",) else innermost(parts)


def innermost(parts: tuple[str, ...]) -> str:
    """The smallest part of the package with a layer of its own: "locks.protocol" before "locks"."""
    deep = ".".join(parts[:2])
    return deep if deep in LEVEL else parts[0]


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """The parts of a module's source."""
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))


def imported(path: Path) -> set[str]:
    """Absolute names of all modules a file imports, wherever the import stands."""
    package = path.relative_to(ROOT).parts[:-1]
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).strip(".")
            if node.module:
                names.add(module)
            else:
                names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def test_every_part_of_the_package_has_a_layer():
    compiled = {path.stem for path in (ROOT / "bloomlock").glob("*.pyi")}
    assert {place_of(path) for path in modules("bloomlock")} | compiled == set(LEVEL)


@pytest.mark.parametrize("path", modules("bloomlock"), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path):
    mine = LEVEL[place_of(path)]
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "bloomlock" and parts[1:2]:
            place = innermost(tuple(parts[1:]))
            place = place if place in LEVEL else ""
            assert LEVEL[place] <= mine, f"{path.name} imports {name}"
        elif parts[0] == "bloomlock":
            assert mine >= LEVEL[""], f"{path.name} imports the public names"


@pytest.mark.parametrize(
    "path",
    [path for path in modules("bloomlock") if place_of(path) in PURE],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_pure_parts_know_neither_clock_nor_network(path):
    assert not imported(path) & IMPURE_MODULES


@pytest.mark.parametrize(
    "path",
    [p for folder in ("bloomlock/cli", "scrapy_ext", "benchmarks") for p in modules(folder)],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_what_stands_above_uses_public_names(path):
    ours = {name for name in imported(path) if name.split(".")[0] == "bloomlock"}
    inner = {name for name in ours if not name.startswith("bloomlock.cli")}
    assert inner <= PUBLIC


def imports_of_each() -> dict[str, set[str]]:
    """What each module and package of ours imports of our modules, wherever the import stands."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for folder in ("bloomlock", "scrapy_ext")
        for path in modules(folder)
    }
    known = {name for name in paths if not name.endswith("__")}
    return {name: _imported_modules(path, known) - {name} for name, path in paths.items()}


def _imported_modules(path: Path, known: set[str]) -> set[str]:
    """`from package import module` counts as well as `import package.module`."""
    package = path.relative_to(ROOT).parts[:-1]
    found = imported(path)
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            start = ".".join((*base, *filter(None, [node.module])))
            found |= {f"{start}.{alias.name}" for alias in node.names}
    return found & known


def test_no_modules_import_each_other_in_a_circle():
    order = graphlib.TopologicalSorter(imports_of_each())
    try:
        order.prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(reversed(error.args[1]))}")


def test_few_modules_serve_one_other():
    """A module with a single importer is a part of it, unless it is a subject of its own."""
    importers = collections.defaultdict(list)
    for importer, names in imports_of_each().items():
        for name in names:
            importers[name].append(importer)
    single = {name: by[0] for name, by in importers.items() if len(by) == 1}
    # What a package alone imports is public.
    single = {name: by for name, by in single.items() if not by.endswith("__init__")}
    print(len(single), *(f"{name} <- {by}" for name, by in sorted(single.items())), sep="\n")
    assert len(single) <= SINGLE
