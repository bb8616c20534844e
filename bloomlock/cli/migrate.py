"""`bloomlock migrate-scrapy`: what a crawl has seen without bloomlock, as a filter."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from .errors import NO, Failure, advise, warn
from .fingerprints import RedisSet, open_source
from .options import FilterOptions, examples, filter_options, on_full_option
from .pipeline import sizer_of_load
from .progress import show_progress
from .streams import SignalGuard, batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bloomlock import BloomFilter

    from .fingerprints import Source

_AGAIN = "run the same command again: adding a fingerprint twice changes nothing"
_SCRAPY_REDIS = "scrapy_ext.ScrapyRedisFingerprinter"
_SCRAPY = "scrapy.utils.request.RequestFingerprinter"
_ROOM = 2
"""Times what the source holds: the capacity of a new filter, as the crawl goes on."""


@click.command(
    "migrate-scrapy",
    epilog=examples(
        "bloomlock migrate-scrapy shop:dupefilter --visited https://shop.example/",
        "bloomlock migrate-scrapy job/requests.seen --name shop:dupefilter",
    ),
)
@click.argument("source", metavar="KEY|FILE")
@click.option(
    "--name", help="The filter; it is created if there is none.  [default: KEY, as Scrapy has it]"
)
@click.option(
    "--from",
    "source_url",
    metavar="URL",
    help="Redis server of KEY.  [default: that of the filter]",
)
@click.option(
    "--raw", is_flag=True, help="The members of KEY are fingerprints, not their hexadecimal digits."
)
@click.option(
    "--visited",
    metavar="URL",
    help="A page that the crawl has fetched: says which fingerprinter the settings have to name.",
)
@filter_options
@on_full_option
def migrate_command(
    source: str,
    *,
    name: str | None,
    source_url: str | None,
    raw: bool,
    visited: str | None,
    **options: Any,
) -> int:
    """Add what a crawl has seen to a filter, and verify that all of it is there.

    KEY is the set of scrapy-redis, "SPIDER:dupefilter"; FILE is Scrapy's requests.seen, or the
    JOBDIR with it. Neither is changed. The crawl may run meanwhile: what is added to the set is
    found by the verification, or by the same command after the crawl has stopped. What is written
    are the settings with which a crawl goes on with the filter.

    After an interruption run the same command again: adding a fingerprint twice changes nothing.

    Exit status: 0; 1 if the fingerprint of the --visited page is not there; 2 after an error.
    """
    probe = Probe(_candidates(visited))
    found = open_source(source, options["url"] if source_url is None else source_url, raw=raw)
    if name is None and not isinstance(found, RedisSet):
        raise Failure('--name is missing: that of the filter for a file, "SPIDER:dupefilter"')
    asked = FilterOptions(**options, lines=_ROOM * found.most)
    with asked.create_or_open(name or source) as bloom:
        with advise(_AGAIN):
            read, late = _migrate(bloom, found, probe)
        settings = _settings(bloom, probe.fingerprinter or _usual(found), keyed=asked.new_key())
    warn(f"{read} fingerprints read from {found.title}; all are in the filter")
    if found.cut:
        warn(f"{found.cut} fingerprints are incomplete, as a killed process leaves them")
    if late:
        warn(f"{late} of them came meanwhile; {_AGAIN}, when the crawl has stopped")
    click.echo("\n".join(settings))
    if visited is not None and probe.fingerprinter is None:
        warn(
            f"no fingerprint of {visited} is among them: the crawl has not fetched it, or has a "
            "REQUEST_FINGERPRINTER_CLASS of its own, which has to stay"
        )
        return NO
    return 0


@dataclass
class Probe:
    """Looks for the fingerprint of one page.

    Attributes:
        candidates: What it may be, with the class that takes it so.
        fingerprinter: The class whose fingerprint was met.
    """

    candidates: Mapping[bytes, str]
    fingerprinter: str | None = None

    def look(self, batch: list[bytes]) -> None:
        """Look at some fingerprints."""
        if self.candidates and self.fingerprinter is None:
            for each in self.candidates.keys() & set(batch):
                self.fingerprinter = self.candidates[each]


def _candidates(visited: str | None) -> Mapping[bytes, str]:
    if visited is None:
        return {}
    try:
        from scrapy_ext.fingerprints import candidates  # noqa: PLC0415 - only here Scrapy is needed
    except ModuleNotFoundError as error:
        raise Failure("--visited needs Scrapy: pip install 'bloomlock[scrapy]'") from error
    try:
        return candidates(visited)
    except ValueError as error:
        raise Failure(f"--visited must be a URL, not {visited!r}: {error}") from error


def _migrate(bloom: BloomFilter, source: Source, probe: Probe) -> tuple[int, int]:
    """Add all fingerprints, then look for each; return how many there were, and came meanwhile."""
    late = 0
    with (
        SignalGuard() as guard,
        show_progress(2 * source.size, writes=False, what="fingerprints") as progress,
    ):

        def read() -> Iterator[list[bytes]]:
            done = 0
            sizer = sizer_of_load(bloom)
            for batch in batches(source.read(progress.read), sizer):
                guard.check()
                start = time.monotonic()
                yield batch
                done += len(batch)
                progress.answered(done, None)
                sizer.answered(len(batch), time.monotonic() - start)
            guard.check()

        for batch in read():
            probe.look(batch)
            bloom.update(batch)
        total = 0
        for batch in read():
            total += len(batch)
            seen = bloom.exists_many(batch)
            if missing := [each for each, is_in in zip(batch, seen, strict=True) if not is_in]:
                late += len(missing)
                probe.look(missing)
                bloom.update(missing)
    return total, late


def _usual(source: Source) -> str | None:
    """Return the fingerprinter of a source, where no page shows it: that of today's versions."""
    return _SCRAPY_REDIS if isinstance(source, RedisSet) else None


def _settings(
    bloom: BloomFilter, fingerprinter: str | None, *, keyed: bytes | bool | None
) -> list[str]:
    """Return the lines for settings.py with which a crawl attaches to the filter."""
    values: dict[str, object] = {
        "ADDONS": {"scrapy_ext.BloomlockAddon": 500},
        "BLOOMLOCK_NAME": bloom.name.replace("%", "%%"),
        "BLOOMLOCK_CAPACITY": bloom.capacity,
        "BLOOMLOCK_ERROR_RATE": bloom.error_rate,
    }
    if fingerprinter not in {None, _SCRAPY}:
        values["REQUEST_FINGERPRINTER_CLASS"] = fingerprinter
    lines = [f"{name} = {value!r}".replace("'", '"') for name, value in values.items()]
    if keyed is not None:
        secret = "True" if keyed is True else "...  # the secret of the key file"
        lines.append(f"BLOOMLOCK_KEY = {secret}")
    return lines
