"""Benchmarks of bloomlock against what else answers "has anyone seen this before?".

`python -m benchmarks run --help`, from the root of a checkout with the `bench` extra installed.

cli.py          the command: run, show and report
suites.py       all suites by name
grid/           suites that run the same contenders in many cases, and their engine
winners.py, losses.py, locks.py, dedup.py, memory.py, micro.py: the other suites
contenders/     what is compared, one small class each
workloads.py    the items they are offered; links.py: those of a real site
team.py         the processes of one contender, kept alive between slices
worker.py       one of these processes; jobs.py, task_jobs.py and locks_jobs.py are its jobs
meter.py        what a slice cost the server; delay_proxy.py: a longer way to it
figures.py      medians, ratios and grants; place.py: the server and the keys
results.py      results as JSON; report/ makes docs/benchmarks.md of them

Figures depend on the machine and on what else it does; the ratios within one run are what counts.
"""
