"""The lines of a folder that no job has handed on before, by PySpark.

spark-submit spark_partitions.py IN OUT
"""

from __future__ import annotations

import os
import sys
from itertools import islice
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from bloomlock import BloomFilter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


def filter_of_lines() -> BloomFilter:
    """Attach to the filter. A process does so for each partition, as a filter cannot be pickled."""
    return BloomFilter("lines", capacity=10_000_000, client=URL)


def not_seen(lines: Iterable[str]) -> Iterator[str]:
    """Yield what the filter does not hold. Spark may run this twice: it changes nothing."""
    lines = iter(lines)
    with filter_of_lines() as seen:
        while batch := list(islice(lines, 100_000)):
            known = seen.exists_many(batch)
            yield from (line for line, is_known in zip(batch, known, strict=True) if not is_known)


def add(lines: Iterable[str]) -> None:
    """Add lines; that, too, may happen twice."""
    with filter_of_lines() as seen:
        seen.update(lines)


if __name__ == "__main__":
    source, target = sys.argv[1:]
    spark = SparkSession.builder.appName("new lines").getOrCreate()
    lines = spark.sparkContext.textFile(source)
    lines.mapPartitions(not_seen).distinct().saveAsTextFile(target)
    # Only what is written counts as seen. A job that dies before this does its work again.
    spark.sparkContext.textFile(target).foreachPartition(add)
    spark.stop()
