"""Run by `python -m benchmarks`."""

from .cli import main

main(prog_name="python -m benchmarks")
