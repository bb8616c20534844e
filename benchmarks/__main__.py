"""Run by `python -m benchmarks`."""

from __future__ import annotations

from .cli import main

main(prog_name="python -m benchmarks")
