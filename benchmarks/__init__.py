"""Benchmarks of bloomlock against what else answers "has anyone seen this before?".

`python -m benchmarks --help`, from the root of a checkout with the `bench` extra installed. Suites
say what is measured, contenders what is compared; the engine lets contenders take turns. Figures
depend on the machine and on what else it does; the ratios within one run are what counts.
"""
