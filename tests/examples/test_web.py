"""FastAPI and Django with two worker processes: of all requests for an item one does the work."""

from __future__ import annotations

import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

pytestmark = pytest.mark.processes


def post(url):
    """Return the answer; what is refused is sent again."""
    while True:
        try:
            with urlopen(Request(url, method="POST"), timeout=100) as reply:  # noqa: S310 - loopback
                return json.load(reply)
        except HTTPError as refused:
            if refused.code != 409:
                raise


def post_all(server, address, path, done):
    """Send each item four times at a time, until both workers had some.

    Returns the items with their answers, and the items that a worker said it did.
    """
    (base,) = server.wait_for(lambda: re.findall(address, server.printed))
    answers, workers = [], set()
    with ThreadPoolExecutor(8) as pool:
        for turn in itertools.count():
            items = [f"{turn}-{number}" for number in range(20)] * 4
            urls = [f"{base}/{path}/{item}" for item in items]
            answers += zip(items, pool.map(post, urls), strict=True)
            workers = {worker for worker, _ in re.findall(done, server.printed)}
            if len(workers) == 2:
                break
    return answers, sorted(item for _, item in re.findall(done, server.printed))


def test_fastapi(start):
    words = ("-m", "uvicorn", "fastapi_app:app", "--workers", 2, "--port", 0)
    server = start("fastapi", *words)
    server.wait_for(lambda: server.printed.count("startup complete") == 2)
    done = r"worker (\d+) handles (\S+)"
    answers, handled = post_all(server, r"running on (http://[\d.:]+)", "events", done)
    assert handled == sorted({item for item, _ in answers})
    # Who asked while another worker had the event learned by the next try that it was handled.
    assert {answer["state"] for _, answer in answers} <= {"new", "seen"}
    assert sorted(item for item, answer in answers if answer["state"] == "new") == handled


def test_django(start):
    words = ("-m", "gunicorn", "django_site:application", "--preload", "--workers", 2)
    server = start("django", *words, "--bind", "127.0.0.1:0")
    server.wait_for(lambda: server.printed.count("Booting worker") == 2)
    done = r"worker (\d+) greets (\S+)"
    answers, greeted = post_all(server, r"at: (http://[\d.:]+)", "sign-up", done)
    assert greeted == sorted({item for item, _ in answers})
    assert sorted(item for item, answer in answers if answer["new"]) == greeted
