"""No password is shown, however it stands in a URL, right or wrong."""

from __future__ import annotations

import asyncio
import traceback
from urllib.parse import quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomlock.errors import BloomlockError
from bloomlock.runtime._async.clients import async_client_of
from bloomlock.runtime._sync.clients import client_of, clients_of
from bloomlock.server.urls import checked_address, hide_secret, shown

# Nothing else in a URL, and no sentence, has these letters.
LETTERS = "ΞΨΩ"
some = st.text(LETTERS + "@/?#:%&=+[]. 09", max_size=6)
secrets = st.tuples(some, st.sampled_from(LETTERS), some).map("".join)
written = st.one_of(secrets, secrets.map(quote_plus))


@st.composite
def urls(draw, place="127.0.0.1:1"):
    """A URL with a user name and a password, each as it should be written or as people do."""
    # A user name that is written as the path of a socket starts is one.
    user = draw((written | st.just("")).filter(lambda text: not text.startswith("/")))
    password = draw(written)
    scheme = draw(st.sampled_from(["redis://", "rediss://", "unix://", "redis+sentinel://"]))
    server = "/no/such/sock" if scheme == "unix://" else place + draw(st.sampled_from(["", "/0"]))
    before = draw(st.sampled_from(["", f"{user}:{password}@"]))
    after = f"?db=0&password={password}&username={user}"
    return f"{scheme}{before}{server}{after if not before else draw(st.sampled_from(['', after]))}"


def is_clean(text: str) -> bool:
    return set(text).isdisjoint(LETTERS) and "%CE" not in text


@pytest.mark.thorough
@settings(max_examples=300)
@given(urls())
def test_nothing_of_it_is_left(url):
    assert is_clean(hide_secret(url))
    assert is_clean(shown(url))
    assert is_clean(shown(url.replace("://", ":/")))
    assert is_clean(shown([url, {"url": url}, url.encode()]))


@pytest.mark.thorough
@settings(max_examples=60)
@given(urls())
def test_no_error_shows_it(url):
    for use in (
        client_of,
        lambda given: asyncio.run(async_client_of(given)),
        lambda given: clients_of([given, given]),
        clients_of,
        lambda given: client_of(given.encode()),
        lambda given: client_of(given.replace("://", ":/")),
        lambda given: checked_address(given.upper(), "REDIS_URL"),
    ):
        with pytest.raises((BloomlockError, ValueError)) as caught:
            use(url)
        assert is_clean("".join(traceback.format_exception_only(caught.value))), url
        assert is_clean(str(caught.value.__cause__)), url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("redis://host?db=3", "redis://host?db=3"),
        ("unix:///home/me@work/server.sock?db=0", "unix:///home/me@work/server.sock?db=0"),
        ("redis://user@host", "redis://***@host"),
        ("rediss://:a@b@host:1/2", "rediss://***@host:1/2"),
        ("redis://:a/b@host:1/2", "redis://***@host:1/2"),
        ("redis://:a?b@host:1/2", "redis://***"),
        ("redis://host?db=3&password=a", "redis://host?***"),
        ("redis+sentinel://:a@b:1,c:2/pages/0", "redis+sentinel://***"),
        ("redis://user:secret", "redis://***"),
        ("localhost:6379", "localhost:6379"),
        ("me:secret@localhost", "***@localhost"),
        ("host=a password=b", "***"),
    ],
)
def test_what_is_no_secret_is_shown(url, expected):
    assert hide_secret(url) == expected
