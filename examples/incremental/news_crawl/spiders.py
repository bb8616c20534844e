"""A spider for what is new: the front page is fetched each time, an article once for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import Spider
from scrapy.linkextractors import LinkExtractor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy import Request
    from scrapy.http import Response


class NewsSpider(Spider):
    """Yields each article that the front page leads to and that no crawl has had."""

    name = "news"

    def __init__(self, url: str = "https://quotes.toscrape.com/", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Requests for start_urls have dont_filter=True: they are neither filtered nor recorded.
        self.start_urls = [url]
        self.links = LinkExtractor(deny=[f"^{url}$"])

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        """Yield a request for each link of the front page; those that were fetched are dropped."""
        for link in self.links.extract_links(response):
            yield response.follow(link, callback=self.parse_article)

    def parse_article(self, response: Response) -> Iterator[dict[str, Any]]:
        """Yield an article."""
        yield {"url": response.url, "title": response.xpath("//title/text()").get()}
