"""What README and docs tell people to type works as printed."""

from __future__ import annotations

import asyncio
import re

import pages
import pytest
import redis

import bloomlock

README = pages.read("README.md")
DOCS = pages.ROOT / "docs"
TUTORIALS = "tutorials/"
"""Pages that are one program from top to end."""
EXAMPLES = ("how-to/frameworks.md", "how-to/metrics.md")
"""Pages whose code is that of examples/, which tests/examples/ runs."""


def parts():
    names = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    for name in (name for name in names if name not in EXAMPLES):
        text = pages.read(f"docs/{name}")
        if name.startswith(TUTORIALS):
            yield name, pages.blocks_of(text)
        else:
            yield from ((f"{name}-{title}", blocks) for title, blocks in pages.sections(text))
    yield from ((f"README-{title}", blocks) for title, blocks in pages.sections(README))


PARTS = {name: blocks for name, blocks in parts() if blocks}


@pytest.mark.parametrize("blocks", PARTS.values(), ids=PARTS)
def test_a_section_runs_as_printed(blocks, valkey, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLOOMLOCK_URL", valkey)
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        pages.run(blocks, valkey)
        left = [key for key in client.scan_iter() if b":lock" not in key]
    assert left == [], "an example deletes what it creates"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_code_of_a_page_is_that_of_an_example(name):
    text = pages.read(f"docs/{name}")
    blocks = re.findall(r'(?ms)^```python title="(examples/\w+\.py)"\n(.*?)^```$', text)
    assert len(blocks) == text.count("```python") > 0
    assert [file for file, code in blocks if code not in pages.read(file)] == []


def test_comments_are_compared(valkey):
    with asyncio.Runner() as runner:
        assert pages.run_python("if 1:\n    1 + 1  # 2\n", {}, runner, valkey) == 1
        with pytest.raises(AssertionError, match="1 \\+ 1  # 3"):
            pages.run_python("if 1:\n    1 + 1  # 3\n", {}, runner, valkey)


def test_every_file_that_a_page_outside_the_site_links_to_is_there():
    # `mkdocs build --strict` does it for the pages of the site, with their headings.
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/llms.txt"):
        text = pages.read(name)
        links = re.findall(r"\]\((?!https?:|#)([^#)]+)", text)
        links += re.findall(r'(?:src|srcset)="([^"]+)"', text)
        folder = (pages.ROOT / name).parent
        assert [link for link in links if not (folder / link).exists()] == [], name


@pytest.mark.parametrize(
    "name", ["reference/guarantees.md", "explanation/guarantees-and-limits.md"]
)
def test_the_tests_that_a_page_names_are_there(name):
    text = pages.read(f"docs/{name}")
    named = set(re.findall(r"`(test_\w+)`", text))
    sources = [path.read_text("utf-8") for path in (pages.ROOT / "tests").rglob("*.py")]
    defined = {found for source in sources for found in re.findall(r"def (test_\w+)", source)}
    assert named
    assert named - defined == set()
    files = re.findall(r"`(tests/[\w/.]+)`", text)
    assert [file for file in files if not (pages.ROOT / file).exists()] == []


def test_the_reference_has_every_public_name():
    shown = {
        name
        for path in (DOCS / "reference").glob("*.md")
        for name in re.findall(r"^::: bloomlock\.(\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    twins = {name for name in bloomlock.__all__ if name.startswith("Async")}
    assert shown == {*bloomlock.__all__, "catalog", "errors", "server"} - twins


def test_ci_names_files_that_are_there():
    named = set(re.findall(r"tests/[\w/]+\.py", (pages.ROOT / ".ci" / "run").read_text("utf-8")))
    assert named
    assert {name for name in named if not (pages.ROOT / name).exists()} == set()


def test_ci_runs_the_test_command_of_the_readme():
    commands = [line.strip() for line in README.splitlines() if line.startswith("    pip install")]
    _, tests = commands
    assert tests in (pages.ROOT / ".ci" / "run").read_text("utf-8").splitlines()
