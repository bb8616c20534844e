"""`bloomlock plan`."""

from __future__ import annotations

import json
import re

import pytest

from bloomlock import plan


def test_the_plan_is_a_table(run):
    done = run("plan", "--items", "41e9", "--rate", "111200", "--server-memory", "64")
    assert (done.returncode, done.stderr) == (0, b"")
    table = dict(re.split(r"  +", line) for line in done.stdout.decode().splitlines())
    made = plan(41 * 10**9, 1e-6, items_per_s=111_200, server_bytes=64 * 2**30)
    assert table["items"] == "41000000000"
    assert table["bits"].split()[0] == str(made.num_bits)
    assert table["servers"] == str(made.servers) == table["servers for the memory"]
    assert run("plan", "--like", "irlbot", "--server-memory", "64").stdout == done.stdout


def test_the_plan_as_json(run):
    done = run(
        "plan", "--items", "1000000", "--error-rate", "0.01", "--layout", "blocked", "--json"
    )
    found = json.loads(done.stdout)
    assert found["num_bits"] == plan(10**6, 0.01, layout="blocked").num_bits
    assert found["servers"] == 1
    assert found["servers_for_rate"] is None


def test_the_plan_of_a_time_window(run):
    done = run("plan", "--items", "200e6", "--window", "7d", "--slices", "6")
    table = dict(re.split(r"  +", line) for line in done.stdout.decode().splitlines())
    assert table["window"] == "7 days, 0:00:00 in 6 slices"
    made = plan(200 * 10**6, 1e-6, window=604_800, slices=6)
    assert table["bits"].split()[0] == str(made.num_bits)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--items", "5", "--window", "soon"], "window must be a timedelta or seconds"),
        (["--items", "5", "--window", "0"], "window must be a timedelta or seconds"),
        (["--items", "5", "--slices", "6"], "slices must be None without window="),
        (["--items", "5", "--window", "1d", "--layout", "blocked"], "layout must be 'classic'"),
        ([], "give --items, or --like a known crawl"),
        (["--items", "many"], "--items must be a whole number from 1 on, such as 41e9, not many"),
        (["--items", "1.5"], "--items must be a whole number"),
        (["--like", "mine"], "--like must be irlbot, not mine"),
        (["--items", "5", "--rate", "0"], "--rate must be a number greater than 0, not 0.0"),
        (["--items", "5", "--server-memory", "x"], "--server-memory must be a number"),
        (["--items", "1e13"], "needs about 2^48"),
        (["--items", "5", "--error-rate", "7"], "error_rate must be a number from 1e-15"),
    ],
)
def test_bad_input_gets_one_sentence(run, words, message):
    done = run("plan", *words)
    assert done.returncode == 2
    assert message in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert not done.stdout
