"""A driver program that a test may kill: runs the queries of a work directory to their end.

The output of a query is a file per batch, which is replaced as a whole: a batch that runs twice
counts once.
"""

import json
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession

import sparkckpt
from tests.conftest import QUICK_JVM
from tests.spark import jobs
from tests.spark.faults import Faults, running_sums, wait_until
from tests.spark.streams import (
    AVAILABLE_NOW,
    CONTINUALLY,
    SPARKCKPT,
    BatchFunction,
    Job,
    Output,
    canonical_rows,
    session_for,
    start,
)

CONFS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
}
HOSTS = ("127.0.0.1", "127.0.0.2")
"""Of the cluster with two hosts: Spark starts no speculative copy of a task on the same one."""


@dataclass(frozen=True)
class Program:
    """What a driver runs, and on which master; "two-hosts" is a cluster inside the driver."""

    workdir: Path
    master: str
    faults: Faults | None = None
    confs: dict[str, str] = field(default_factory=dict)
    until_told: bool = False
    """Waits for more input until `told_to_stop` exists, and does not end with the input."""

    @property
    def told_to_stop(self) -> Path:
        return self.workdir / "stop"

    def save(self) -> Path:
        path = self.workdir / "program.pickle"
        path.write_bytes(pickle.dumps(self))
        return path


def windows(batches: int = 1) -> Job:
    return Job.of(jobs.EVENTS, jobs.events(batches), jobs.windowed)


def output_of(workdir: Path, name: str) -> Path:
    return workdir / f"{name}-output"


def write_batches(directory: Path, faults: Faults | None) -> BatchFunction:
    directory.mkdir(parents=True, exist_ok=True)

    def write(rows: DataFrame, batch: int) -> None:
        out = rows.rdd.mapPartitions(faults.after_commit).collect() if faults else rows.collect()
        hidden = directory / f".{batch}"
        hidden.write_text(json.dumps(canonical_rows(out)))
        hidden.rename(directory / f"{batch}.json")

    return write


def read_batches(directory: Path) -> Output:
    return {int(file.stem): json.loads(file.read_text()) for file in directory.glob("*.json")}


def start_cluster(conf: SparkConf, workdir: Path) -> str:
    """A master and a worker on each of the hosts, all in the JVM of this driver."""
    SparkContext._ensure_initialized(conf=conf)
    jvm: Any = SparkContext._jvm
    deploy, spark_conf = jvm.org.apache.spark.deploy, jvm.org.apache.spark.SparkConf()
    master = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, spark_conf)
    url = f"spark://{HOSTS[0]}:{master._1().address().port()}"
    masters = SparkContext._gateway.new_array(jvm.java.lang.String, 1)  # type: ignore[union-attr]
    masters[0] = url
    for number, host in enumerate(HOSTS):
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host,
            0,
            0,
            1,
            1024,
            masters,
            str(workdir / f"worker-{number}"),
            jvm.scala.Option.apply(number),
            spark_conf,
            jvm.scala.Option.empty(),
        )
    return url


def session_of(program: Program) -> SparkSession:
    builder = SparkSession.builder.appName("sparkckpt-faults").config(
        map={**CONFS, **program.confs}
    )
    builder = sparkckpt.configure(builder)
    if program.master == "two-hosts":
        master = start_cluster(SparkConf().setAll(builder._options.items()), program.workdir)
    else:
        master = program.master
    return builder.master(master).getOrCreate()


def main(path: str) -> None:
    program: Program = pickle.loads(Path(path).read_bytes())
    session = session_for(session_of(program), SPARKCKPT.confs)
    queries = [
        start(
            session,
            job,
            program.workdir / name,
            write_batches(output_of(program.workdir, name), faults),
            CONTINUALLY if program.until_told else AVAILABLE_NOW,
        )
        for name, job, faults in (
            ("sums", running_sums(program.faults), program.faults),
            ("windows", windows(), None),
        )
        if (program.workdir / name).exists()
    ]
    if program.until_told:
        wait_until(
            lambda: program.told_to_stop.exists() or not all(q.isActive for q in queries),
            limit=3600,
        )
        for query in queries:
            query.processAllAvailable()
            query.stop()
    for query in queries:
        query.awaitTermination()
    session.sparkContext.stop()


if __name__ == "__main__":
    main(sys.argv[1])
