"""Library, docs and messages use the words of the field, and one word for one thing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATTERNS = (
    "README.md",
    "docs/*.md",
    "bloomlock/**/*.py",
    "bloomlock/**/*.lua",
    "scrapy_ext/**/*.py",
)
FILES = sorted(
    path.relative_to(ROOT).as_posix() for pattern in PATTERNS for path in ROOT.glob(pattern)
)

ANYWHERE = {
    **dict.fromkeys(("tell", "tells", "telling"), "report, return, ask"),
    "told": "reported",
    "untold": "unreported",
    **dict.fromkeys(("whoever", "whomever"), "the client, the caller that"),
    "somebody": "another client, another thread",
    "nobody": "no client, no caller",
    "so many": "n, as many as",
    "aside": "effect",
    "asides": "effects",
}
"""Words that stand nowhere, and what to write."""

NAMES = {
    "face": "base",
    "joins": "may_join",
    "trial": "provisional",
    "patience": "the name of the limit",
    "pace": "batch size",
    "board": "frontier",
    "tally": "stats",
    "team": "workers",
    "trouble": "errors",
    "nearby": "near_cache",
    "gathered": "batch",
    "following": "what is done",
}
"""Parts of the names of classes, functions, parameters and modules."""

WHOLE_NAMES = {
    *(
        "Aside",
        "Asking",
        "Enter",
        "Flight",
        "Leave",
        "Leaving",
        "Listen",
        "Silence",
        "Wait",
        "Work",
    ),
    *("flight", "in_hand", "last_words", "life", "rest()"),
}
"""Names that are words of English otherwise; with brackets, of functions."""

ALLOWED = {
    ".tell()": "a method of files",
}
"""What contains a word, and why it may."""

ALLOWED_NAMES = {
    "_ASKING": "a command of Redis Cluster",
}
"""Names that contain a word, and why they may."""


def words_in(text: str) -> set[str]:
    for phrase in ALLOWED:
        text = text.replace(phrase, "")
    text = re.sub(r"\s+(?:#|--)?\s*", " ", text).lower()
    pattern = rf"(?<![a-z])(?:{'|'.join(ANYWHERE)})(?![a-z])"
    return set(re.findall(pattern, text))


def names_in(code: str) -> set[str]:
    """Return all names that a module gives or uses by themselves."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {node.name, f"{node.name}()"}
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found


def parts_of(name: str) -> set[str]:
    """Return the words of a name.

    >>> sorted(parts_of("_LockFace2")), sorted(parts_of("TRIAL_MS"))
    (['face', 'lock'], ['ms', 'trial'])
    """
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def private_names(path: str, code: str) -> set[str]:
    names = names_in(code) | {Path(path).stem}
    return {
        name
        for name in names - ALLOWED_NAMES.keys()
        if name.lstrip("_") in WHOLE_NAMES or parts_of(name) & NAMES.keys()
    }


@pytest.mark.parametrize("path", FILES)
def test_words_of_the_field(path):
    text = (ROOT / path).read_text("utf-8")
    found = words_in(text)
    assert not found, {word: f"write: {ANYWHERE[word]}" for word in found}
    if path.endswith(".py"):
        assert private_names(path, text) == set()


def test_words_and_names_are_found():
    assert words_in("x\n# what\n# nobody\n-- so\n-- many items") == {"nobody", "so many"}
    assert words_in("def _tell_lost(): ...") == {"tell"}
    assert words_in("intelligent; a foretold end; file.tell()") == set()
    code = "class LockFace:\n    def wait(self, patience): return self._in_hand\nclass Wait: ...\n"
    assert private_names("a/team.py", code) == {"LockFace", "patience", "_in_hand", "Wait", "team"}
    code = "head, *rest = life_lock\nasync def _rest(): ..."
    assert private_names("a/frontier.py", code) == {"_rest()"}
