"""A class for asyncio has the bodies of its twin for threads, but for `async` and `await`.

The few methods that differ stand here with their reason, so that one that begins to differ is seen,
and one that no longer does leaves the list.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import bloomlock

ROOT = Path(__file__).parents[2] / "bloomlock"

RENAMED = {
    "Tasks": "Threads",
    "tasks": "threads",
    "tasks_for": "threads_for",
    "tasks_over": "threads_over",
    "aclose": "close",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aiter": "iter",
    "anext": "next",
    "aclosing": "closing",
    "watchdog_of_loop": "WATCHDOG",
    "_ASYNC_STEPS": "_STEPS",
    "source_of_address": "pool_of_address",
    "source_of_replica": "pool_of_replica",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
"""Names for asyncio, and their twins."""

REPLACED = {
    "asyncio.sleep(": "time.sleep(",
    "'__aenter__'": "'__enter__'",
    "an asynchronous context manager": "a context manager",
}
"""Code for asyncio, and its twin."""

NO_TWINS = {"runtime/redispy.py": "adapts redis-py, whose own twins differ"}
"""Modules that are not compared, and why."""

WHY: dict[str, tuple[str, ...]] = {
    "a filter of asyncio attaches at its first use, as a constructor cannot wait": (
        "AsyncBloomFilter.__aenter__",
        "AsyncBloomFilter._connect",
        "AsyncBloomFilter._start",
        "AsyncBloomFilter._keeper",
    ),
    "concurrent calls of asyncio are sent together": (
        "AsyncBloomFilter.add",
        "AsyncBloomFilter.close",
        "AsyncBloomFilter.exists",
    ),
    "an asynchronous generator has no `yield from`": ("AsyncBloomFilter._each",),
    "files are read and written by a thread, not by the loop": ("AsyncPortableFilter._wait",),
    "keys of asyncio come one by one": ("async_list_filters",),
    "a runtime of threads keeps an idle connection, which a function gives back": (
        "async_delete_filter",
        "async_rename_filter",
    ),
    "the embedded server is found by a blocking call, in a thread": (
        "_async_connected",
        "async_client",
    ),
    "redis-py has classes for asyncio by the same names": ("async_clients",),
    "the caller's task is known when the method is called, not when it is awaited": (
        "AsyncLock.acquire",
        "AsyncLock.extend",
        "AsyncLock.owned",
        "AsyncLock.release",
    ),
    "a lock of asyncio connects at its first use": (
        "AsyncLock._start",
        "AsyncLock.close",
        "AsyncLock.locked",
        "AsyncReadWriteLock.__init__",
        "AsyncReadWriteLock.close",
        "AsyncRedlock._start",
        "AsyncRedlock.close",
    ),
    "owners are tasks, and callbacks may be coroutines": ("AsyncLock._call_on_lost",),
    "a timer of the loop instead of a thread": (
        "AsyncWatchdog.__init__",
        "AsyncWatchdog._look",
        "AsyncWatchdog._lose",
        "AsyncWatchdog._renew",
        "AsyncWatchdog.add",
        "AsyncWatchdog.call",
        "AsyncWatchdog.remove",
    ),
    "a cancelled task leaves no connection half-used, and tasks share a bound of requests": (
        "Tasks.__init__",
        "AsyncRedirecting._begin_to_hold",
        "AsyncRedirecting._send_again",
        "Tasks._carry_out",
        "Tasks._close",
        "Tasks._exchange",
        "Tasks._request",
        "Tasks._request_on",
        "Tasks._source",
        "Tasks._take",
        "Tasks.run",
    ),
    "what goes on in the background is a task instead of a job in a line of a thread": (
        "Tasks._drop_late",
        "Tasks._within",
        "Tasks.fan_out",
        "Tasks.run_behind",
    ),
    "the nodes of a cluster are asked by a task each, and by a thread in turns": (
        "Tasks._ask_server",
        "Tasks.ask_all",
    ),
    "all tasks of a loop share one subscribed connection, a thread has its own": (
        "Tasks.close",
        "Tasks.subscribe",
        "Tasks.unsubscribe",
    ),
}
"""Why definitions for asyncio differ from their twins."""

EXCEPTIONS = {name for names in WHY.values() for name in names}

ONE_SIDED = {
    "BloomFilter": {"__len__", "__contains__", "__await__", "__ior__", "__iand__"},
}
"""Methods that cannot be awaited, or only that."""


class Sync(ast.NodeTransformer):
    """Turns code for asyncio into what it would be for threads, without prose and annotations."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self.visit_FunctionDef(ast.FunctionDef(**vars(node)))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name, node.returns = renamed(node.name), None
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> ast.AST:
        return self.visit(node.value)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        return self.generic_visit(ast.For(**vars(node)))

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        return self.generic_visit(ast.With(**vars(node)))

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        node.is_async = 0
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        assign = ast.Assign([node.target], node.value, lineno=node.lineno)
        return self.generic_visit(assign)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = renamed(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.attr = renamed(node.attr)
        return self.generic_visit(node)


def renamed(name: str) -> str:
    """Return the name of the twin.

    >>> renamed("_AsyncWatchdog"), renamed("async_send"), renamed("Tasks"), renamed("add")
    ('_Watchdog', 'send', 'Threads', 'add')
    """
    if name in RENAMED:
        return RENAMED[name]
    return re.sub(r"^(_?)(?:Async(?=[A-Z])|async_|sync_)", r"\1", name)


def normalised(node: ast.AST) -> str:
    """Return the code of a definition as it is for threads, indented alike."""
    code = ast.unparse(ast.fix_missing_locations(Sync().visit(node)))
    for theirs, ours in REPLACED.items():
        code = code.replace(theirs, ours)
    return code


def definitions(path: Path) -> dict[str, ast.AST]:
    """Return the functions and methods of a module by their names: `add`, `BloomFilter.add`."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    found[f"{node.name}.{each.name}"] = each
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
    return found


def is_for_asyncio(module: str, name: str) -> bool:
    return bool(re.match(r"_?[Aa]sync", name)) or module == "runtime/tasks.py"


def twin_of(name: str) -> str:
    """Return the name that the twin of a function or method has."""
    return ".".join(map(renamed, name.split(".")))


def twins() -> dict[str, tuple[ast.AST, ast.AST]]:
    """Return all definitions for asyncio that have a twin, each with it."""
    modules = {path.relative_to(ROOT).as_posix(): definitions(path) for path in ROOT.rglob("*.py")}
    for module in NO_TWINS:
        del modules[module]
    threads = modules.pop("runtime/threads.py")
    others = {
        twin_of(name): node
        for module, found in modules.items()
        for name, node in found.items()
        if not is_for_asyncio(module, name)
    }
    return {
        name: (node, candidates[twin_of(name)])
        for module, found in modules.items()
        for candidates in [threads if module == "runtime/tasks.py" else others]
        for name, node in found.items()
        if is_for_asyncio(module, name) and twin_of(name) in candidates
    }


TWINS = twins()


def test_there_are_twins():
    assert {"AsyncBloomFilter.add_many", "AsyncScope.enter", "Tasks.run"} <= TWINS.keys()
    assert TWINS.keys() >= EXCEPTIONS, "what is excepted is no more"


@pytest.mark.parametrize("name", sorted(TWINS))
def test_bodies_are_the_same(name):
    mine, other = map(normalised, TWINS[name])
    if name in EXCEPTIONS:
        assert mine != other, "the same by now: take it off the list"
    else:
        assert mine == other


CLASSES = [name for name in bloomlock.__all__ if f"Async{name}" in bloomlock.__all__]


@pytest.mark.parametrize("name", CLASSES)
def test_public_classes_have_the_same_methods(name):
    mine, other = (
        {renamed(each) for each in methods(getattr(bloomlock, full))}
        for full in (f"Async{name}", name)
    )
    assert mine ^ other == ONE_SIDED.get(name, set())


def methods(kind: type) -> set[str]:
    names = [each for each in dir(kind) if not re.match(r"_(?!_)", each)]
    return {each for each in names if callable(getattr(kind, each))}


def test_a_difference_is_seen():
    mine = "async def f(self) -> int:\n    async with self.a as b:\n        return await b.aclose()"
    other = "def f(self):\n    with self.a as b:\n        return b.close()"
    [one], [two] = (ast.parse(code).body for code in (mine, other))
    [changed] = ast.parse(other.replace("b.close()", "b.close(1)")).body
    assert normalised(one) == normalised(two) != normalised(changed)
