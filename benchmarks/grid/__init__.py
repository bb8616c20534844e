"""Suites that are grids: the same contenders in many cases, all measured by one engine.

case.py     what a suite consists of, and a row of its results
engine.py   measures it
tables.py   shows it
The other modules are one suite each: what it varies, and why.
"""
