"""`bloomlock crawl`: several Scrapy processes, one filter, one queue.

`job.run` starts and watches the processes of `workers`; `spider` runs in each; `frontier` is what
they share in Redis; `stats` is what each writes down and what that adds up to. `site` is what is
crawled, `render` makes the pages that are crawled when none are given.
"""
