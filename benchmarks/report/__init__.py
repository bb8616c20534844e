"""The page that is made of the results.

asked.py    what is asked of bloomlock, and whether the results show it
plots.py    pictures of how cost grows
page.py     docs/benchmarks.md
"""

from __future__ import annotations

from .asked import asked_tables
from .page import write_report

__all__ = ["asked_tables", "write_report"]
