"""A worker whose filter, claims and lock Prometheus sees at http://localhost:9464/metrics.

python metrics_server.py 9464
"""

from __future__ import annotations

import sys
import time

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server

from bloomlock import BloomFilter, Lock
from bloomlock.metrics import Metrics

metrics = Metrics(MeterProvider([PrometheusMetricReader()]), every=15)
jobs = BloomFilter("jobs", capacity=1_000_000)
metrics.count(jobs)  # what this object adds, and its errors: in each process
metrics.poll("jobs")  # what the server has: in one process of all
nightly = Lock("nightly", observer=metrics.observe_lock)
start_http_server(int(sys.argv[1]), "127.0.0.1")

with nightly:
    jobs.add_many(f"job {number}" for number in range(100))
    with jobs.claim("one more") as claim:
        print(claim.state, flush=True)
time.sleep(600)
