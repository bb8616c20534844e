"""scrapy."""
