"""What README and docs tell people to type works as printed."""

from __future__ import annotations

import asyncio
import re

import pages
import pytest
import redis

README = pages.read("README.md")
FILTER = pages.read("docs/filter.md")
CLAIMS = pages.read("docs/claims.md")
ONCE = pages.read("docs/once.md")
FOREIGN = pages.read("docs/foreign-locks.md")
DOCS = sorted(
    path.relative_to(pages.ROOT / "docs").as_posix() for path in (pages.ROOT / "docs").rglob("*.md")
)
PARTS = {
    f"{page}-{title}": blocks
    for page, text in (
        ("README", README),
        ("filter", FILTER),
        ("claims", CLAIMS),
        ("once", ONCE),
        ("foreign-locks", FOREIGN),
    )
    for title, blocks in pages.sections(text)
    if title != pages.TASK_QUEUES  # modules: tests/once/test_queues.py runs their workers
}


@pytest.mark.parametrize("blocks", PARTS.values(), ids=PARTS)
def test_a_section_runs_as_printed(blocks, valkey, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLOOMLOCK_URL", valkey)
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        pages.run(blocks, valkey)
        left = [key for key in client.scan_iter() if b":lock" not in key]
    assert left == [], "an example deletes what it creates"


def test_comments_are_compared(valkey):
    with asyncio.Runner() as runner:
        assert pages.run_python("if 1:\n    1 + 1  # 2\n", {}, runner, valkey) == 1
        with pytest.raises(AssertionError, match="1 \\+ 1  # 3"):
            pages.run_python("if 1:\n    1 + 1  # 3\n", {}, runner, valkey)


@pytest.mark.parametrize("name", ["README.md", *(f"docs/{name}" for name in DOCS)])
def test_every_link_inside_a_page_leads_somewhere(name):
    page = pages.read(name)
    assert pages.dead_links(page) == set()
    folder = (pages.ROOT / name).parent
    files = re.findall(r"\]\((?!https?:)([^#)]+)(?:#([^)]*))?\)", page)
    for file, heading in files:
        assert (folder / file).exists(), file
        if heading:
            there = (folder / file).read_text("utf-8")
            assert pages.dead_links(f"{there}\n[x](#{heading})") == set(), heading


def test_ci_names_files_that_are_there():
    named = set(re.findall(r"tests/[\w/]+\.py", (pages.ROOT / ".ci" / "run").read_text("utf-8")))
    assert named
    assert {name for name in named if not (pages.ROOT / name).exists()} == set()


def test_ci_runs_the_test_command_of_the_readme():
    commands = [line.strip() for line in README.splitlines() if line.startswith("    pip install")]
    _, tests = commands
    assert tests in (pages.ROOT / ".ci" / "run").read_text("utf-8").splitlines()
