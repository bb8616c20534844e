"""Benchmarks of bloomlock against what else answers "has anyone seen this before?".

`python -m benchmarks --help`, from the root of a checkout with the `bench` extra installed.

cli.py        the command: run, page, plot
suites/       what is measured, as data where the engine measures it
engine.py     runs the slices of contenders that take turns
team.py       the processes of a contender; jobs.py: what they do
contenders/   what is compared
workloads.py  the items
place.py      servers, keys, and what a slice cost the server
proxies.py    a longer way to the server, and one that loses replies
crawl/        crawls by Scrapy, killed or not, of a made-up site
results.py    rows and files of figures; tables.py, page.py and plots.py show them

Figures depend on the machine and on what else it does; the ratios within one run are what counts.
"""
