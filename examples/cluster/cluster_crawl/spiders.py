"""A spider for all pages of one site; nothing in it knows bloomlock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy import Spider
from scrapy.linkextractors import LinkExtractor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy import Request
    from scrapy.http import Response


class SiteSpider(Spider):
    """Yields the title of each page of a site."""

    name = "site"

    def __init__(self, url: str = "https://quotes.toscrape.com/", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start_urls = [url]
        self.links = LinkExtractor(allow_domains=[urlsplit(url).netloc])

    def parse(self, response: Response, **_: Any) -> Iterator[dict[str, Any] | Request]:
        """Yield the page, and a request for each link."""
        yield {"url": response.url, "title": response.xpath("//title/text()").get()}
        for link in self.links.extract_links(response):
            yield response.follow(link)
