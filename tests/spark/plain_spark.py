"""Runs some batches of a job in an application of its own that has never heard of sparkckpt.

`python -m tests.spark.plain_spark WORKDIR JOB FIRST UNTIL [NAME=VALUE ...]` prints, as JSON, the
rows of each batch. What is not set is Spark's own default.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.conftest import SESSION_CONFS
from tests.spark.streams import Backend
from tests.spark.transfers import JOBS, run_on


def main(workdir: str, name: str, first: str, until: str, *settings: str) -> None:
    confs = {key: value for key, value in SESSION_CONFS.items() if "shuffle" not in key}
    spark = SparkSession.builder.config(map=confs).getOrCreate()
    assert spark.conf.get("spark.plugins", "") == ""
    backend = Backend("plain", dict(setting.split("=", 1) for setting in settings))
    batches = range(int(first), int(until))
    print(json.dumps(run_on(spark, JOBS[name], Path(workdir), backend, batches, 3)))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
