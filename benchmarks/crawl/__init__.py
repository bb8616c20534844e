"""Crawls by Scrapy: job.py is what a process does, site.py what it crawls."""
