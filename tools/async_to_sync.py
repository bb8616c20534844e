"""Write the classes for threads: each `_sync` package is made from the `_async` one beside it.

    python tools/async_to_sync.py          write all of them
    python tools/async_to_sync.py --check  exit with status 1 if one is not what would be written

The source is written for asyncio. For threads

- `async` and `await` go, and so do the prefixes of names (`AsyncClaim`, `async_list_filters`,
  `__aenter__`) and of modules (`redis.asyncio`, `_async`);
- a block `if True:  # ASYNC` goes. What follows it is for threads, and so is its `else`;
- a paragraph of a docstring goes that begins with "With asyncio".

Ruff drops the imports that are of no more use, sorts the rest, and breaks the lines.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = tuple(ROOT.glob("bloomlock/**/_async"))
HEADER = "# Written by tools/async_to_sync.py from {source}; change that.\n"
RULES = (
    (r"\n\n +With asyncio(?:[^\n]|\n(?! *\n))*?(?=\n *\n|\n? *\"\"\")", ""),
    (r"\bawait ", ""),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bCoroutine\[Any, Any, (\w+)\]", r"\1"),
    (r"\basync (?=def|with|for)", ""),
    (r"\basync(?=contextmanager)", ""),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basync_(?=[a-z])", ""),
    (r"\b__a(?=(enter|exit)__)", "__"),
    (r"\bredis\.asyncio\b", "redis"),
    (r"\b_async\b", "_sync"),
)
RUFF = (
    ("check", "--fix", "--unsafe-fixes", "--exit-zero", "--select=F401,I001,UP028,C416"),
    ("format",),
)


def twin_of(source: Path) -> Path:
    """Return the file that is made from a source."""
    return source.parent.with_name("_sync") / source.name


def for_threads(text: str, twin: Path) -> str:
    r"""Return the text of a twin.

    >>> for_threads("async def go(a: AsyncLock) -> bool: return await a.acquire()", Path("a.py"))
    'def go(a: Lock) -> bool:\n    return a.acquire()\n'
    """
    text = _without_blocks(text)
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    for command in RUFF:
        arguments = ("ruff", *command, "--quiet", f"--stdin-filename={twin}", "-")
        done = subprocess.run(  # noqa: S603 - ruff, over our own sources
            arguments, input=text, capture_output=True, text=True, check=True, cwd=ROOT
        )
        text = done.stdout
    return text


def _without_blocks(text: str) -> str:
    """Leave out the blocks that are for asyncio alone."""
    kept = []
    block: int | None = None
    is_else = False
    for line in text.splitlines(keepends=True):
        indent = len(line) - len(line.lstrip())
        if block is not None and (indent > block or not line.strip()):
            if is_else:
                kept.append(line.removeprefix("    "))
            continue
        is_else = block is not None and line.strip() == "else:"
        if not is_else:
            block = indent if line.strip() == "if True:  # ASYNC" else None
        if block is None:
            kept.append(line)
    return "".join(kept)


def main() -> int:
    """Write or compare all twins; return the exit status."""
    differ = []
    for source in sorted(path for folder in SOURCES for path in folder.glob("*.py")):
        twin = twin_of(source)
        header = HEADER.format(source=source.relative_to(ROOT))
        text = header + for_threads(source.read_text(), twin)
        if twin.exists() and twin.read_text() == text:
            continue
        differ.append(str(twin.relative_to(ROOT)))
        if "--check" not in sys.argv:
            twin.parent.mkdir(exist_ok=True)
            twin.write_text(text)
    if differ:
        done = "is not what the tool writes" if "--check" in sys.argv else "written"
        print(*(f"{path}: {done}" for path in differ), sep="\n")
    return int(bool(differ) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
