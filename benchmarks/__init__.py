"""Benchmarks of bloomlock against what else answers "has anyone seen this before?".

`python -m benchmarks --help`, from the root of a checkout with the `bench` extra installed.

cli.py          the command: run, page, show and report; options.py: what it is given
suites/         one module each: what it varies, and why
engine.py       measures suites that run the same contenders in many cases; tables.py shows them
contenders/     what is compared: ours, sets, filters, locks and bare round trips
workloads.py    the items they are offered, among them the links of real sites
team.py         the processes of one contender, kept alive between slices
worker.py       one of these processes; jobs.py and locks_jobs.py are its jobs
place.py        the server, the keys, and what a slice cost the server
figures.py      medians and ratios; locks_figures.py: grants
delay_proxy.py  a longer way to the server; loss_proxy.py: one that loses replies
crawl_rig.py    crawls by Scrapy, killed or not; crawl_job.py is one; crawl_site.py: what is crawled
results.py      results as JSON; report.py makes docs/benchmarks.md of them

Figures depend on the machine and on what else it does; the ratios within one run are what counts.
"""
