"""What `bloomlock crawl` does: several Scrapy processes with the add-on crawl one site."""

GIVEN = "BLOOMLOCK_CRAWL"
"""The variable of the environment with the settings of a worker."""
