"""`bloomlock crawl`: several Scrapy processes, one filter, one queue.

`job.run` starts and watches the processes of `workers`; `worker` is such a process, and `spider`
runs in it; `frontier` is what they share in Redis; `stats` is what each writes down and what that
adds up to. `site` is what is crawled; where that is nothing given, `render`
makes the pages.
"""
