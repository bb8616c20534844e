"""What `bloomlock crawl` does: several Scrapy processes with the add-on crawl one site."""
