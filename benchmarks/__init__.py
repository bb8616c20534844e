"""Benchmarks of bloomlock against what else answers "has anyone seen this before?".

`python -m benchmarks --help`, from the root of a checkout with the `dev` extra installed.

cli.py          the command
speed.py        calls per second and their ratios
winners.py      many processes offer the same items: who is told "new"
losses.py       replies get lost: which items are lost with them
locks.py        locks: alone, and with many clients on one lock
contenders/     what is compared, one small class each
team.py         the processes of one contender, kept alive and told when to run a slice
worker.py       one of these processes; jobs.py is what it can be told to do

Figures depend on the machine and on what else it does; the ratios within one run are what counts.
"""
