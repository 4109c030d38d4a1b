"""A query that keeps running totals, and its checkpoint, to look into and to damage.

Every run starts from what lies on disk, and every result is compared with the same totals computed
without Spark.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkckpt.format import StateFileRef, StateHandle, load_handle
from sparkckpt.storage import Storage
from tests.spark.leases import await_release
from tests.spark.streams import (
    PARTITIONS,
    STATE_STORE,
    Job,
    checkpoint_of,
    feed,
    session_for,
    start,
    unload_state,
)

Totals = dict[tuple[str | None, int], tuple[int, int]]
"""Number and sum of the values of each key."""

PARALLELISM = 3
CONFS = {
    PARTITIONS: str(PARALLELISM),
    STATE_STORE + "sparkckpt.merge.maxDeltas": "4",
    STATE_STORE + "sparkckpt.recordBatchRows": "8",
}
NO_INLINING = {STATE_STORE + "sparkckpt.inlineThreshold": "0"}


def row(batch: int, number: int) -> Mapping[str, Any]:
    key = (batch * 17 + number * 5) % 90
    return {"k": None if key == 7 else f"key {key}", "g": key % 4, "v": batch * 100 + number}


TOTALS = Job.of(
    "k string, g long, v long",
    [[row(batch, number) for number in range(40)] for batch in range(60)],
    lambda df: df.groupBy("k", "g").agg(sf.count("*").alias("n"), sf.sum("v").alias("sum")),
    "complete",
)


def totals_after(batches: int) -> Totals:
    """The result of the job, computed without Spark."""
    totals: Totals = {}
    for entry in (entry for batch in TOTALS.batches[:batches] for entry in batch["in"]):
        key = entry["k"], entry["g"]
        count, total = totals.get(key, (0, 0))
        totals[key] = (count + 1, total + entry["v"])
    return totals


@dataclass
class RunningTotals:
    """The job on a checkpoint of its own; every run starts from what lies on disk."""

    spark: SparkSession
    workdir: Path
    confs: Mapping[str, str]
    batches: int = 0
    result: Totals = field(default_factory=dict)
    run_id: str = ""
    """That of the last run."""

    def advance(self, batches: int = 1, confs: Mapping[str, str] | None = None) -> None:
        """Processes more batches and checks that the result is what it must be."""
        self.feed(batches)
        self.run(confs)
        assert self.result == totals_after(self.batches)

    def feed(self, batches: int = 1) -> None:
        feed(TOTALS, self.workdir, range(self.batches, self.batches + batches))
        self.batches += batches

    def run(self, confs: Mapping[str, str] | None = None) -> None:
        def collect(rows: DataFrame, batch: int) -> None:
            self.result = {(r.k, r.g): (r.n, r.sum) for r in rows.collect()}

        session = session_for(self.spark, {**CONFS, **self.confs, **(confs or {})})
        try:
            query = start(session, TOTALS, self.workdir, collect)
            self.run_id = query.runId
            query.awaitTermination()
        finally:
            unload_state(self.spark)

    def settle(self) -> None:
        """Waits until the coordinator of the last run has done all that it does."""
        await_release(self.checkpoint, self.run_id)

    @property
    def checkpoint(self) -> Path:
        return checkpoint_of(self.workdir)

    @property
    def state(self) -> Storage:
        return Storage.at(self.checkpoint / "state")

    def handles(self, batch: int | None = None) -> list[StateHandle]:
        """The handles that Spark's commit log names for a batch, by default the last one."""
        if batch is None:
            batch = max(int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*"))
        committed = (self.checkpoint / "commits" / str(batch)).read_text().splitlines()[1]
        ids = json.loads(committed)["stateUniqueIds"]["0"]
        return [
            load_handle(self.state, 0, partition, batch + 1, checkpoint_id)
            for partition, (checkpoint_id,) in enumerate(ids)
        ]

    def files(self) -> Iterator[tuple[StateHandle, StateFileRef]]:
        for handle in self.handles():
            for ref in handle.files_of():
                yield handle, ref
