"""How a crawl starts: which server, which settings, and which of Scrapy's commands record."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
import servers
from scrapy.settings import Settings

from bloomlock import BloomlockError, ConfigurationError
from bloomlock.server import PrivateServer
from scrapy_ext.connection import redis_client
from scrapy_ext.guard import GuardedFilter, Verdict
from scrapy_ext.settings import KNOWN, FilterSettings, warn_of_unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DEAD = "127.0.0.1:1"


def guard_of(**settings: Any) -> GuardedFilter:
    """Return a guard as a crawl with these settings has it."""
    given = Settings({"BLOOMLOCK_CAPACITY": 1000, **settings})
    config = FilterSettings.read(given, "spider")
    return GuardedFilter(config, lambda: redis_client(given, 5.0), print, print)


def uses(guard: GuardedFilter) -> redis.Redis:
    """Start a guard and see that it works; return its client."""
    guard.start()
    assert [guard.check(b"a"), guard.check(b"a")] == [Verdict.NEW, Verdict.SEEN]
    client = guard._client
    guard.finish(lambda _: None)
    return client


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with PrivateServer(port=0) as private:
        yield private


@pytest.mark.parametrize(
    ("settings", "database"),
    [
        ({"BLOOMLOCK_URL": "redis://127.0.0.1:{port}/2", "REDIS_URL": f"redis://{DEAD}"}, 2),
        ({"REDIS_URL": "redis://127.0.0.1:{port}/3"}, 3),
        ({"REDIS_HOST": "127.0.0.1", "REDIS_PORT": "{port}"}, 0),
        (
            {
                "REDIS_PARAMS": {
                    "host": "127.0.0.1",
                    "port": "{port}",
                    "db": 5,
                    "retry_on_timeout": True,
                }
            },
            5,
        ),
        (
            {
                "REDIS_PARAMS": {"redis_cls": "redis.Redis"},
                "REDIS_PORT": "{port}",
                "REDIS_DB": 6,
            },
            6,
        ),
    ],
)
def test_the_server_is_found_where_scrapy_redis_finds_it(
    settings: dict[str, Any], database: int, server: PrivateServer
) -> None:
    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(inner) for name, inner in value.items()}
        return value.replace("{port}", str(server.port)) if isinstance(value, str) else value

    client = redis_client(Settings(filled(settings)), timeout=4.5)
    given = client.connection_pool.connection_kwargs
    assert int(given.get("db", 0)) == database
    assert given["socket_timeout"] == given["socket_connect_timeout"] == 4.5
    client.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"BLOOMLOCK_URL": "http://user:secret@host"},
            r"BLOOMLOCK_URL must be a URL that starts with .*sentinel://, not 'http://\*\*\*@host'",
        ),
        ({"REDIS_URL": "redis://:sec/ret@host"}, "REDIS_URL is 'redis://.*two meanings"),
        ({"REDIS_URL": "redis://:secret@host:port"}, "REDIS_URL must be the URL of a Redis server"),
        ({"BLOOMLOCK_URL": "redis+sentinel://a"}, "BLOOMLOCK_URL must be the URL.*no service"),
        ({"BLOOMLOCK_URL": "redis+sentinel://a:b/c"}, "BLOOMLOCK_URL must be the URL of a Redis"),
        ({"REDIS_PARAMS": {"redis_cls": "no.such"}}, "REDIS_PARAMS makes no Redis client"),
    ],
)
def test_settings_that_make_no_client_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        redis_client(Settings(settings), timeout=0.5)
    assert "sec" not in str(raised.value)
    assert "sec" not in str(raised.value.__cause__)


def test_a_wrong_password_is_one_sentence_without_it() -> None:
    with PrivateServer(port=0, config={"requirepass": "right"}) as private:
        guard = guard_of(BLOOMLOCK_URL=f"redis://:wr%40ng@127.0.0.1:{private.port}/0")
        with pytest.raises(BloomlockError) as raised:
            guard.start()
        said = str(raised.value)
        assert said.startswith(
            f"BLOOMLOCK_URL: no Redis server can be used at 127.0.0.1:{private.port} "
            "(AuthenticationError: "
        )
        assert "ng@" not in said
        assert "\n" not in said
        uses(guard_of(BLOOMLOCK_URL=f"redis://:right@127.0.0.1:{private.port}/0"))


def test_a_node_of_a_cluster_is_enough() -> None:
    with PrivateServer(port=servers.low_port(), config={"cluster-enabled": True}) as node:
        with redis.Redis(port=node.port or 0) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            servers.wait_until(
                lambda: client.execute_command("CLUSTER INFO").get("cluster_state") == "ok", 60
            )
        client = uses(guard_of(BLOOMLOCK_URL=f"redis://127.0.0.1:{node.port}/0"))
        assert isinstance(client, redis.RedisCluster)


def test_sentinels_name_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
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
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/pages/2"
        uses(guard_of(BLOOMLOCK_URL=url))
        monkeypatch.setenv("BLOOMLOCK_URL", url)
        uses(guard_of(BLOOMLOCK_NAME="from the environment"))
        with redis.Redis(port=master.port, db=2) as client:
            assert list(client.scan_iter("bloomlock:*spider:dupefilter*"))
            assert list(client.scan_iter("bloomlock:*from the environment*"))
        for url, sentence in (
            (f"redis+sentinel://127.0.0.1:{port}/no", r"master of the Sentinels' service 'no'"),
            (f"redis://127.0.0.1:{port}/0", r"is a Sentinel.*redis\+sentinel://127\.0\.0\.1:"),
        ):
            with pytest.raises(BloomlockError, match=sentence):
                guard_of(BLOOMLOCK_URL=url).start()


def test_an_unknown_setting_is_named_with_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    given = {"BLOOMLOCK_CAPACITIES": 5, "BLOOMLOCK_XYZZY": 1, "BLOOMLOCK_NAME": "x", "OTHER": 1}
    no_setting = "There is no setting {}; it has no effect. "
    with caplog.at_level(logging.WARNING):
        warn_of_unknown(Settings(given))
    assert caplog.messages == [
        no_setting.format("BLOOMLOCK_CAPACITIES") + "Did you mean BLOOMLOCK_CAPACITY?",
        no_setting.format("BLOOMLOCK_XYZZY") + f"Known are {', '.join(KNOWN)}.",
    ]


def test_the_settings_that_are_read_are_those_known_and_those_in_the_readme() -> None:
    read = {
        name
        for path in (ROOT / "scrapy_ext").glob("*.py")
        for name in re.findall(r'"(BLOOMLOCK_[A-Z_]+)"', path.read_text())
    }
    assert read == set(KNOWN)
    listed = re.findall(
        r"^\| `(BLOOMLOCK_[A-Z_]+)` \|", (ROOT / "docs" / "scrapy.md").read_text(), re.MULTILINE
    )
    assert sorted(listed) == sorted(KNOWN)


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
def project(tmp_path: Path, site: Any) -> Path:
    """A Scrapy project with one spider for the site."""
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = project.settings\n")
    (tmp_path / "project" / "spiders").mkdir(parents=True)
    for package in ("project", "project/spiders"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "project" / "spiders" / "links.py").write_text(SPIDER.format(url=site.url))
    (tmp_path / "project" / "settings.py").write_text(
        'SPIDER_MODULES = ["project.spiders"]\n'
        'DUPEFILTER_CLASS = "scrapy_ext.BloomDupeFilter"\n'
        "BLOOMLOCK_RECORD_UNFILTERED = True\n"
        "TELNETCONSOLE_ENABLED = False\n"
    )
    return tmp_path


def scrapy(
    project: Path, server: PrivateServer, *arguments: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scrapy", *arguments, "-s", f"BLOOMLOCK_URL={server.url}"]
    return subprocess.run(
        command, cwd=project, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize(
    "command",
    [
        ["parse", "--spider=links", "--depth=2", "{url}/0"],
        ["fetch", "--spider=links", "{url}/0"],
        ["shell", "-c", "fetch('{url}/1')", "{url}/0"],
        ["check", "links"],
    ],
    ids=lambda command: command[0],
)
def test_a_command_that_looks_at_pages_leaves_the_filter_alone(
    command: list[str], project: Path, site: Any, server: PrivateServer
) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        done = scrapy(project, server, *(part.replace("{url}", site.url) for part in command))
        assert done.returncode == 0, done.stderr
        assert "the filter of the crawls is left alone" in done.stderr or command[0] == "check"
        assert "/0" in site.requested
        assert client.keys() == []


def test_a_crawl_records_and_says_how_much_was_there(
    project: Path, site: Any, server: PrivateServer
) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    for before in (0, len(site.paths)):
        done = scrapy(project, server, "crawl", "links")
        assert done.returncode == 0, done.stderr
        line = f"Using the filter 'links:dupefilter': about {before} requests were recorded"
        assert line in done.stderr
    assert site.requested.count("/1") == 1


def test_a_crawl_whose_server_is_not_there_exits_with_1(project: Path, site: Any) -> None:
    with PrivateServer() as server:
        server.kill()
        done = scrapy(project, server, "crawl", "links")
    assert done.returncode == 1
    assert "BLOOMLOCK_URL: no Redis server can be used at" in done.stderr
    assert site.requested == []
