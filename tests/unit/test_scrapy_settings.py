"""The settings of scrapy_ext by themselves: what is read, what is refused with one sentence."""

from __future__ import annotations

import logging

import pytest
from scrapy.settings import Settings

from bloomlock.errors import ConfigurationError
from scrapy_ext.settings import FilterSettings, QueueSettings, keeps_requests, warn_of_unknown


def read(**given: object) -> FilterSettings:
    settings = Settings({f"BLOOMLOCK_{name}": value for name, value in given.items()})
    return FilterSettings.read(settings, "shop")


def test_defaults():
    found = read()
    assert (found.name, found.capacity, found.error_rate) == ("shop:dupefilter", 1_000_000, 1e-6)
    assert (found.strategy, found.on_full, found.on_outage) == ("atomic", "warn", "allow")
    assert (found.near_cache, found.max_staleness, found.timeout) == (100_000, 1.0, 1.0)
    assert (found.key, found.window, found.slices, found.num_hashes) == (None,) * 4
    assert not found.clear_on_close


@pytest.mark.parametrize(
    ("setting", "value", "field", "expected"),
    [
        # The command line's `-s` hands everything over as a string.
        ("CAPACITY", "5000", "capacity", 5000),
        ("CAPACITY", "5e6", "capacity", 5_000_000),
        ("ERROR_RATE", "0.01", "error_rate", 0.01),
        ("NEAR_CACHE", "0", "near_cache", 0),
        ("NUM_HASHES", "7", "num_hashes", 7),
        ("WINDOW", "3600", "window", 3600.0),
        ("KEY", "True", "key", True),
        ("KEY", "thirty-two bytes of a secret key", "key", "thirty-two bytes of a secret key"),
        ("CLEAR_ON_CLOSE", "True", "clear_on_close", True),
        ("NAME", "%(spider)s 100%%", "name", "shop 100%"),
        ("NAME", "all", "name", "all"),
        ("ON_OUTAGE", "close", "on_outage", "close"),
    ],
)
def test_settings_are_read(setting, value, field, expected):
    assert getattr(read(**{setting: value}), field) == expected


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        *(("CAPACITY", v, "allowed is a whole number above 0") for v in (0, -1, 1.5, "x", True)),
        *(("ERROR_RATE", v, "allowed is a number above 0 and below 1") for v in (0, 1, "a")),
        ("NEAR_CACHE", -1, "allowed is a whole number 0 or more"),
        ("MIRROR_BYTES", "1.5", "allowed is a whole number 0 or more"),
        *(("MAX_STALENESS", v, "allowed is a number above 0") for v in (0, "nan", "inf")),
        ("TIMEOUT", [], "allowed is a number above 0"),
        ("WINDOW", "7d", "allowed is a number above 0"),
        ("SLICES", "six", "allowed is a whole number above 0"),
        ("NUM_HASHES", 0, "allowed is a whole number above 0"),
        *(("NAME", v, "allowed is a non-empty string") for v in ("", "  ", 5, "%(shop)s", "5 %")),
        ("ON_OUTAGE", "weep", "allowed are 'allow', 'drop', 'close'"),
        ("CLEAR_ON_CLOSE", "maybe", "allowed are True and False"),
        ("RECORD_UNFILTERED", "so", "allowed are True and False"),
    ],
)
def test_a_setting_that_is_not_usable(setting, value, says):
    with pytest.raises(ConfigurationError) as refused:
        read(**{setting: value})
    assert str(refused.value).startswith(f"BLOOMLOCK_{setting} is {value!r}; {says}")
    assert "\n" not in str(refused.value)


def test_a_key_is_not_shown():
    assert "a secret of the project" not in repr(read(KEY="a secret of the project"))


def test_a_setting_that_does_not_exist_is_told_with_its_neighbour(caplog):
    caplog.set_level(logging.WARNING)
    settings = Settings({"BLOOMLOCK_CAPACTY": 5, "BLOOMLOCK_XYZ": 1, "BLOOMLOCK_NAME": "a"})
    warn_of_unknown(settings)
    near, far = (record.getMessage() for record in caplog.records)
    assert near.endswith("BLOOMLOCK_CAPACTY; it has no effect. Did you mean BLOOMLOCK_CAPACITY?")
    assert "BLOOMLOCK_XYZ; it has no effect. Known are BLOOMLOCK_URL, " in far


def test_settings_of_the_queue_that_processes_share():
    found = QueueSettings.read(Settings({"SCHEDULER_IDLE_BEFORE_CLOSE": "3"}))
    assert (found.key, found.is_kept, found.is_flushed, found.idle_s) == (None, True, False, 3)
    assert not QueueSettings.read(Settings({"SCHEDULER_PERSIST": "False"})).is_kept
    with pytest.raises(ConfigurationError, match="SCHEDULER_QUEUE_KEY is '%\\(x\\)s'"):
        QueueSettings.read(Settings({"SCHEDULER_QUEUE_KEY": "%(x)s"}))


def test_only_scrapys_own_queue_in_memory_hands_back_the_same_objects():
    assert keeps_requests(Settings())
    assert not keeps_requests(Settings({"JOBDIR": "x"}))
    assert not keeps_requests(Settings({"SCHEDULER": "scrapy_redis.scheduler.Scheduler"}))
