"""`bloomlock scrapy-import`: what a crawl has seen without bloomlock, as a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .answers import sizes_on_server
from .dedup import create_or_open
from .errors import NO, Failure, advise, warn
from .failed import connected, crawl_record
from .fingerprints import RedisSet, SeenFile, open_source
from .lines import SignalGuard, batches
from .options import example, key_option, url_option
from .progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bloomlock import BloomFilter

_AGAIN = "run the same command again: adding a fingerprint twice changes nothing"
_SCRAPY_REDIS = "scrapy_ext.ScrapyRedisFingerprinter"
_SCRAPY = "scrapy.utils.request.RequestFingerprinter"
_ALONE = {
    "DUPEFILTER_CLASS": "scrapy_ext.BloomDupeFilter",
    "SPIDER_MIDDLEWARES": {"scrapy_ext.BatchingMiddleware": 10},
}
_ROOM = 2
"""Times what the source holds: the capacity of a new filter, as the crawl goes on."""


@click.command("scrapy-import", epilog=example("bloomlock scrapy-import shop:dupefilter"))
@click.argument("source", metavar="KEY|FILE")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--from", "source_url", metavar="URL", help="Server of KEY.  [default: the filter's]")
@click.option("--raw", is_flag=True, help="KEY holds fingerprints, not their hex digits.")
@click.option("--alone", is_flag=True, help="For DUPEFILTER_CLASS without our scheduler.")
@click.option("--undo", is_flag=True, help="KEY: its queue gets what waits in the crawl NAME.")
@click.option("--visited", metavar="URL", help="A fetched page: shows the fingerprinter.")
@url_option
@key_option
def import_command(
    source: str,
    name: str | None,
    *,
    source_url: str | None,
    raw: bool,
    alone: bool,
    undo: bool,
    visited: str | None,
    url: str | None,
    key: bytes | None,
) -> int:
    """Add what a crawl has seen to the filter of the crawl NAME, and verify it.

    KEY is the set of scrapy-redis; FILE is Scrapy's requests.seen, or the JOBDIR.
    Neither is changed. NAME, the spider's by default, is a crawl that its next
    process goes on with. The settings for it are written. The old crawl may run;
    after an interruption run the same command again. The queue of scrapy-redis
    is moved by the first process; --undo moves it back.

    Exit status: 0; 1 if the --visited page is not there; 2 after an error.
    """
    if undo:
        return _undo(source, name or source.removesuffix(":requests"), url)
    candidates = _candidates(visited)
    found = open_source(source, url if source_url is None else source_url, raw=raw)
    if name is None and not isinstance(found, RedisSet):
        raise Failure("NAME is missing: that of the spider")
    name = name or source.removesuffix(":dupefilter")
    place = {}
    if not alone:
        with connected(url) as client:
            place["prefix"] = crawl_record(client, name).prepare()
    parameters = {"client": url} | ({} if key is None else {"key": key})
    with create_or_open(name, parameters, _ROOM * found.most, **place) as bloom, advise(_AGAIN):
        read, late, met = _import(bloom, found, candidates)
        usual = _SCRAPY_REDIS if isinstance(found, RedisSet) else None
        settings = _settings(bloom, met or usual, has_secret=key is not None, alone=alone)
    warn(f"{read} fingerprints read from {found.title}; all are in the filter")
    if found.cut:
        warn(f"{found.cut} fingerprints are incomplete, as a killed process leaves them")
    if late:
        warn(f"{late} of them came meanwhile; {_AGAIN}, when the crawl has stopped")
    click.echo("\n".join(settings))
    if visited is not None and met is None:
        warn(
            f"no fingerprint of {visited} is among them: the crawl has not fetched it, or has a "
            "REQUEST_FINGERPRINTER_CLASS of its own, which has to stay"
        )
        return NO
    return 0


def _undo(key: str, name: str, url: str | None) -> int:
    with connected(url) as client:
        record = crawl_record(client, name)
        from scrapy_ext.migration import put_back  # noqa: PLC0415 - it needs Scrapy

        count = put_back(record, client, key)
    click.echo(f"{count} requests moved to {key}")
    return 0 if count else NO


def _candidates(visited: str | None) -> dict[bytes, str]:
    if visited is None:
        return {}
    try:
        from scrapy_ext.fingerprints import candidates  # noqa: PLC0415 - only here Scrapy is needed
    except ModuleNotFoundError as error:
        raise Failure("--visited needs Scrapy: pip install 'bloomlock[scrapy]'") from error
    try:
        return dict(candidates(visited))
    except ValueError as error:
        raise Failure(f"--visited must be a URL, not {visited!r}: {error}") from error


def _import(
    bloom: BloomFilter, source: RedisSet | SeenFile, candidates: dict[bytes, str]
) -> tuple[int, int, str | None]:
    """Add all fingerprints, then look for each.

    Returns:
        How many there were, how many came meanwhile, and the fingerprinter of the visited page.
    """
    total = late = done = 0
    met: str | None = None
    with SignalGuard() as guard, progress_bar(2 * source.size) as show:

        def count(size: int) -> None:
            nonlocal done
            done += size

        def read() -> Iterator[list[bytes]]:
            for batch in batches(source.read(count), sizes_on_server(bloom, at_stake=False)):
                guard.check()
                yield batch
                show(done, f"{done:,} read")
            guard.check()

        for is_first in (True, False):
            for batch in read():
                missing = batch
                if not is_first:
                    total += len(batch)
                    seen = bloom.exists_many(batch)
                    missing = [one for one, is_in in zip(batch, seen, strict=True) if not is_in]
                    late += len(missing)
                met = met or next((candidates[one] for one in missing if one in candidates), None)
                if missing:
                    bloom.update(missing)
    return total, late, met


def _settings(
    bloom: BloomFilter, fingerprinter: str | None, *, has_secret: bool, alone: bool
) -> list[str]:
    """Return the lines for settings.py with which a crawl attaches to the filter."""
    values: dict[str, object] = {
        **(_ALONE if alone else {"ADDONS": {"scrapy_ext.BloomlockAddon": 500}}),
        "BLOOMLOCK_NAME": bloom.name.replace("%", "%%"),
        "BLOOMLOCK_CAPACITY": bloom.capacity,
        "BLOOMLOCK_ERROR_RATE": bloom.error_rate,
    }
    if fingerprinter not in {None, _SCRAPY}:
        values["REQUEST_FINGERPRINTER_CLASS"] = fingerprinter
    lines = [f"{name} = {value!r}".replace("'", '"') for name, value in values.items()]
    if has_secret:
        lines.append('BLOOMLOCK_FILTER = {"key": ...}  # the secret of the key file')
    return lines
