"""The main job: several Scrapy processes, one filter, one queue.

`job.run` starts and watches the processes, `worker` is one of them, `spider` and `scheduler` are
what runs in it, `journal` is what each writes down and `report` what the journals add up to.
`pydoc_pages` and `serve` make the site that is crawled when none is given.
"""
