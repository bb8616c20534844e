"""A Scrapy project; its settings say what it shows."""
