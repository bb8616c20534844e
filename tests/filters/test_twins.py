"""The filters of threads and of asyncio have the same bodies but for `await`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import bloomlock

FOLDER = Path(bloomlock.__file__).parent / "filters"
DIFFERENT = {
    "_start": "asyncio attaches at the first use",
    "add": "concurrent calls of asyncio go out together",
    "exists": "the same",
    "_each": "an asynchronous generator has no `yield from`",
    "close": "asyncio has calls that wait",
    "__enter__": "asyncio attaches here",
    "__len__": "cannot be awaited",
    "__contains__": "cannot be awaited",
    "__await__": "attaches",
    "_attach": "the same",
    "_calls": "what single calls go through",
    "_run": "connects at the first use",
}


class _Sync(ast.NodeTransformer):
    """Turns the body of a coroutine function into that of a function."""

    def visit_Await(self, node):
        return self.visit(node.value)


def body(function):
    statements = function.body[ast.get_docstring(function) is not None :]
    return [ast.unparse(_Sync().visit(statement)) for statement in statements]


def methods(name):
    tree = ast.parse((FOLDER / name).read_text("utf-8"))
    (made,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    found = [
        node for node in made.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    twins = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
    return {twins.get(node.name, node.name): node for node in found}


SYNC, ASYNC = methods("bloom.py"), methods("async_bloom.py")


@pytest.mark.parametrize("name", sorted((SYNC.keys() | ASYNC.keys()) - DIFFERENT.keys()))
def test_the_bodies_are_the_same(name):
    assert body(SYNC[name]) == body(ASYNC[name])
    assert ast.unparse(SYNC[name].args) == ast.unparse(ASYNC[name].args)


def test_what_is_said_to_differ_does():
    both = SYNC.keys() & ASYNC.keys() & DIFFERENT.keys()
    assert not [name for name in both if body(SYNC[name]) == body(ASYNC[name])]
