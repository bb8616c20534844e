"""docs/foreign-locks.md: its code runs as printed, and is the code that these tests are about."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import redis

from bloomlock import BloomFilter

factories = pytest.importorskip("foreign.factories", exc_type=ImportError)
sql_lock = pytest.importorskip("foreign.sql_lock", exc_type=ImportError)

pytestmark = pytest.mark.foreign
PAGE = Path(__file__).parents[2].joinpath("docs", "foreign-locks.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs(valkey, zookeeper, etcd, sql, monkeypatch):
    monkeypatch.setenv("BLOOMLOCK_URL", valkey)
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
    for printed, private in (
        ('"127.0.0.1:2181"', repr(zookeeper)),
        ("2379", str(etcd)),
        ('"dbname=locks"', repr(sql)),
    ):
        assert code.count(printed) == 1
        code = code.replace(printed, private)
    names: dict[str, object] = {}
    exec(compile(code, "foreign-locks.md", "exec", dont_inherit=True), names)  # noqa: S102 - our page
    names["pool"].close()
    names["client"].stop()
    names["client"].close()
    pages = [f"https://example.org/{last}" for last in ("", "a", "b", "c")]
    assert BloomFilter.open("pages", client=valkey).exists_many(pages) == [True] * 4


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("factories", "zookeeper_lock"),
        ("factories", "EtcdLockLostError"),
        ("factories", "_wait_in_queue"),
        ("factories", "etcd_lock"),
        ("sql_lock", "SqlLockTimeoutError"),
        ("sql_lock", "SqlLockLostError"),
        ("sql_lock", "SqlLock"),
    ],
)
def test_the_page_prints_what_is_tested(module, name):
    assert inspect.getsource(getattr(globals()[module], name)) in PAGE


def test_the_page_prints_the_tested_statements():
    for statement in (
        sql_lock._TABLE.strip(),
        sql_lock._TAKE,
        sql_lock._GIVE_BACK,
        sql_lock._SWEEP,
    ):
        assert statement in PAGE
