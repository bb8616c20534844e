"""The page that is made of the results.

plots.py    pictures of how cost grows
page.py     docs/benchmarks.md
"""

from __future__ import annotations

from .page import write_report

__all__ = ["write_report"]
