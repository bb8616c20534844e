"""Results as JSON files, one for each suite."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
_FIGURES = re.compile(r"\[\n[^\[\]{}\"]*\]")


def save(folder: Path, result: dict[str, Any]) -> None:
    """Write the result of a suite over its last one."""
    folder.mkdir(parents=True, exist_ok=True)
    text = _FIGURES.sub(_in_a_line, json.dumps(result, indent=1)) + "\n"
    (folder / f"{result['suite']}.json").write_text(text, "utf-8")


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Return all results of a folder by the names of their suites."""
    found = (json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("*.json")))
    return {result["suite"]: result for result in found}


def _in_a_line(figures: re.Match[str]) -> str:
    return f"[{' '.join(figures[0][1:-1].split())}]"
