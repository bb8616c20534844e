"""How a crawl starts: which server, which settings, and which of Scrapy's commands record."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import redis
import servers
from asked_filter import AskedFilter, crawler_of
from private import PrivateServer
from scrapy.settings import Settings

from bloomlock import BloomFilter
from bloomlock.errors import BloomlockError, ConfigurationError
from scrapy_ext import BloomDupeFilter
from scrapy_ext.settings import KNOWN, redis_client

if TYPE_CHECKING:
    from crawling import Runner, Site

ROOT = Path(__file__).parents[2]
DEAD = "127.0.0.1:1"
NAME = "spider"


def open_filter(**settings: Any) -> BloomDupeFilter:
    """Open the filter of a crawl with these settings."""
    made = BloomDupeFilter.from_crawler(crawler_of(**settings))
    made.open()
    made.close()
    return made


def works(url: str, **settings: Any) -> None:
    with AskedFilter(url, "one by one", **settings) as asked:
        assert asked.ask("a", "a") == "ns"


@pytest.mark.parametrize(
    ("settings", "database"),
    [
        ({"BLOOMLOCK_URL": "unix://{path}?db=2", "REDIS_URL": f"redis://{DEAD}"}, 2),
        ({"REDIS_URL": "unix://{path}?db=3"}, 3),
        ({"REDIS_PARAMS": {"unix_socket_path": "{path}", "db": 5, "retry_on_timeout": True}}, 5),
        (
            {
                "REDIS_URL": "unix://{path}",
                "REDIS_PARAMS": {"redis_cls": "redis.Redis", "decode_responses": True},
                "REDIS_DB": 6,
                "REDIS_DECODE_RESPONSES": True,
            },
            6,
        ),
    ],
)
def test_the_server_is_found_where_scrapy_redis_finds_it(
    settings: dict[str, Any], database: int, valkey: str, r: redis.Redis
) -> None:
    path = urlsplit(valkey).path
    filled = json.loads(json.dumps(settings).replace("{path}", path))
    open_filter(**filled)
    with redis.Redis(unix_socket_path=path, db=database) as client:
        assert len(client.keys(f"*{NAME}*")) > 0
    assert (r.dbsize() > 0) is (database == 0)
    client = redis_client(Settings(filled), timeout=4.5)
    given = client.connection_pool.connection_kwargs
    # A client of a socket takes no time to connect.
    assert given["socket_timeout"] == given.get("socket_connect_timeout", 4.5) == 4.5
    assert client.echo("é") == "é".encode(), "entries of the queue are bytes"
    client.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"BLOOMLOCK_URL": "http://user:secret@host"},
            r"BLOOMLOCK_URL must be a URL that starts with redis://.*, not 'http://\*\*\*@host'",
        ),
        ({"REDIS_URL": "redis://:sec/ret@host"}, "REDIS_URL is 'redis://.*two meanings"),
        ({"REDIS_URL": "redis://:secret@host:port"}, "REDIS_URL must be the URL of a Redis server"),
        ({"REDIS_PARAMS": {"redis_cls": "no.such"}}, "REDIS_PARAMS makes no Redis client"),
        ({"SCHEDULER_FLUSH_ON_START": "yes"}, "is 'yes'; allowed are True and False"),
        ({"BLOOMLOCK_FILTER": {"key": "short"}}, "key must be"),
        ({"BLOOMLOCK_FILTER": {"on_full": "raise"}}, "on_full = 'raise'.*allowed here is 'warn'"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(
    settings: dict[str, Any], sentence: str, valkey: str
) -> None:
    given = settings if "URL" in "".join(settings) else {"BLOOMLOCK_URL": valkey, **settings}
    given = settings if "REDIS_PARAMS" in settings else given
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        open_filter(**given)
    assert "sec" not in f"{raised.value}{raised.value.__cause__}"


def test_settings_from_the_command_line_are_strings(valkey: str, r: redis.Redis) -> None:
    open_filter(
        BLOOMLOCK_URL=valkey,
        BLOOMLOCK_CAPACITY="5e3",
        BLOOMLOCK_ERROR_RATE="1e-4",
        BLOOMLOCK_NAME="100%% of %(name)s",
        BLOOMLOCK_FILTER='{"key": true, "timeout": 60}',
    )
    with BloomFilter.open("100% of spider", client=r) as shared:
        assert (shared.capacity, shared.error_rate) == (5000, 1e-4)
    # All processes need the same key.
    with pytest.raises(BloomlockError, match="key: stored"):
        open_filter(BLOOMLOCK_URL=valkey, BLOOMLOCK_NAME="100%% of spider")


def test_a_node_of_a_cluster_is_enough(crawls: Runner, site: Site) -> None:
    with PrivateServer(port=servers.low_port(), config={"cluster-enabled": True}) as node:
        with redis.Redis(port=node.port or 0) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            servers.wait_until(
                lambda: client.execute_command("CLUSTER INFO").get("cluster_state") == "ok", 60
            )
        url = f"redis://127.0.0.1:{node.port}/0"
        works(url)
        first = crawls.run(BLOOMLOCK_URL=url, CLOSESPIDER_PAGECOUNT=3, CONCURRENT_REQUESTS=1)
        second = crawls.run(BLOOMLOCK_URL=url)
    assert second.lines("Goes on with the crawl 'spider'")
    assert sorted(first.fetched + second.fetched) == ["/0", *site.paths]


def test_a_function_of_the_project_may_ask_sentinels(crawls: Runner, site: Site) -> None:
    with ExitStack() as stack:
        master = stack.enter_context(PrivateServer(port=servers.low_port()))
        binary = servers.require_server("valkey")
        assert master.port
        port = stack.enter_context(servers.sentinel(binary, "pages", master.port))

        def found() -> bool:
            with redis.Redis(port=port) as client:
                try:
                    return bool(client.sentinel_master("pages"))
                except redis.ConnectionError:
                    return False

        servers.wait_until(found, 60)
        params = {"redis_cls": "__main__.master_of_sentinels", "sentinel_port": port, "db": 2}
        asked = crawls.run(REDIS_PARAMS=params, REDIS_URL=None)
        assert sorted(asked.fetched) == ["/0", *site.paths]
        with redis.Redis(port=master.port, db=2) as client:
            assert client.keys("*") == [b"{spider}:crawl"]
        with pytest.raises(BloomlockError, match="is a Sentinel.*a client of its master"):
            open_filter(BLOOMLOCK_URL=f"redis://127.0.0.1:{port}/0")


def test_the_page_lists_the_settings() -> None:
    page = (ROOT / "docs" / "reference" / "settings-and-stats.md").read_text()
    listed = re.findall(r"^\| `(BLOOMLOCK_[A-Z_]+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(KNOWN)


# Commands of Scrapy.

SPIDER = """
from scrapy import Spider

class Links(Spider):
    name = "links"
    start_urls = ["{url}/0"]
    allowed_domains = ["127.0.0.1"]

    def parse(self, response):
        '''
        @url {url}/0
        @returns requests 1
        '''
        for link in response.xpath("//a/@href").getall():
            yield response.follow(link)
"""


@pytest.fixture
def project(tmp_path: Path, site: Site) -> Path:
    """A Scrapy project with one spider for the site."""
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = project.settings\n")
    (tmp_path / "project" / "spiders").mkdir(parents=True)
    for package in ("project", "project/spiders"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "project" / "spiders" / "links.py").write_text(SPIDER.format(url=site.url))
    (tmp_path / "project" / "settings.py").write_text(
        'SPIDER_MODULES = ["project.spiders"]\n'
        'BLOOMLOCK_FILTER = {"timeout": 60}\n'
        "TELNETCONSOLE_ENABLED = False\n"
    )
    return tmp_path


FILTER = "DUPEFILTER_CLASS=scrapy_ext.BloomDupeFilter"
SCHEDULER = "SCHEDULER=scrapy_ext.Scheduler"


@pytest.mark.parametrize(
    ("setting", "command"),
    [
        (FILTER, ["parse", "--spider=links", "--depth=2", "{url}/0"]),
        (SCHEDULER, ["parse", "--spider=links", "--depth=2", "{url}/0"]),
        (SCHEDULER, ["fetch", "--spider=links", "{url}/0"]),
        (SCHEDULER, ["shell", "-c", "fetch('{url}/1')", "{url}/0"]),
        (SCHEDULER, ["check", "links"]),
        (SCHEDULER, ["list"]),
    ],
)
def test_a_command_that_looks_at_pages_needs_no_server(
    command: list[str], setting: str, project: Path, site: Site, crawls: Runner
) -> None:
    words = [part.replace("{url}", site.url) for part in command]
    done = crawls.command(project, *words, "-s", setting, "-s", f"BLOOMLOCK_URL=redis://{DEAD}")
    result = done.finish()
    assert result.code == 0, result.log
    assert ("/0" in site.requested) is (command != ["list"])
    if setting == FILTER:
        assert result.lines("the filter of the crawls is left alone")


ADDON = 'ADDONS={"scrapy_ext.BloomlockAddon": 500}'
NO_SERVER = f"no Redis server answers at redis://***@{DEAD}"


@pytest.mark.parametrize(
    ("set_up", "setting", "sentence"),
    [
        (ADDON, "BLOOMLOCK_CAPACITY=0", "BLOOMLOCK_CAPACITY is '0'; allowed is"),
        (ADDON, 'BLOOMLOCK_FILTER={"num_hashes": 65}', "num_hashes must be a whole number"),
        (ADDON, "JOBDIR=jobs", "JOBDIR has jobs/requests.seen of a crawl without bloomlock"),
        (ADDON, f"BLOOMLOCK_URL=redis://:secret@{DEAD}", NO_SERVER),
        (FILTER, f"BLOOMLOCK_URL=redis://:secret@{DEAD}", NO_SERVER),
        (
            FILTER,
            "SCHEDULER=scrapy_redis.scheduler.Scheduler",
            "scrapy_ext.BloomDupeFilter serves Scrapy's own scheduler",
        ),
    ],
)
def test_a_crawl_that_cannot_start_says_why_in_one_line(
    set_up: str, setting: str, sentence: str, project: Path, crawls: Runner, valkey: str
) -> None:
    (project / "jobs").mkdir()
    (project / "jobs" / "requests.seen").write_text("seen")
    words = ("crawl", "links", "-s", set_up, "-s", "LOG_LEVEL=WARNING", "-s", f"REDIS_URL={valkey}")
    done = crawls.command(project, *words, "-s", setting).finish()
    assert done.log.count("\n") == 1, done.log
    assert f"[bloomlock.scrapy] CRITICAL: {sentence}" in done.log
    assert done.code == 1


def test_the_filter_alone_outlives_the_crawl_and_says_what_is_lost(
    project: Path, site: Site, crawls: Runner, valkey: str
) -> None:
    for before in (0, len(site.paths)):
        done = crawls.command(project, "crawl", "links", "-s", FILTER, BLOOMLOCK_URL=valkey)
        result = done.finish()
        assert result.code == 0, result.log
        assert result.lines(f"Using the filter 'links': about {before} requests were")
        assert result.lines("The queue is lost when the crawl stops before its end")
    assert site.requested.count("/1") == 1


def test_a_wrong_password_is_one_sentence_without_it() -> None:
    with PrivateServer(port=0, config={"requirepass": "right"}) as private:
        with pytest.raises(BloomlockError) as raised:
            open_filter(BLOOMLOCK_URL=f"redis://:wr%40ng@127.0.0.1:{private.port}/0")
        said = str(raised.value)
        assert f"127.0.0.1:{private.port}" in said
        assert "the password or the user name is wrong" in said
        assert "ng@" not in said
        assert "\n" not in said
        works(f"redis://:right@127.0.0.1:{private.port}/0")
