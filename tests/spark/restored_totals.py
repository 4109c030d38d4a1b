"""The query of running totals on a checkpoint that its options have restored from another one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.streams import PARTITIONS, STATE_STORE, open_sources, session_for, unload_state
from tests.spark.totals import CONFS, TOTALS, RunningTotals, Totals, totals_after

OPTION = STATE_STORE + "sparkckpt."
PATH = OPTION + "restore.path"
MODE = OPTION + "restore.mode"
QUERY = OPTION + "restore.query"
PARALLELISM = OPTION + "restore.parallelism"
CHECKPOINT_ID = OPTION + "restore.checkpointId"
RESCALE = OPTION + "rescaleOnRestart"


@dataclass
class Restored:
    """The source's query, with its input and a checkpointLocation of its own."""

    source: RunningTotals
    name: str
    result: Totals = field(default_factory=dict)
    batches_run: list[int] = field(default_factory=list)

    @property
    def checkpoint(self) -> Path:
        return self.source.workdir / self.name

    def session(self, confs: Mapping[str, str]) -> SparkSession:
        return session_for(self.source.spark, {**CONFS, **self.source.confs, **confs})

    def start(self, session: SparkSession, name: str = "") -> StreamingQuery:
        def collect(rows: DataFrame, batch: int) -> None:
            self.batches_run.append(batch)
            self.result = {(r.k, r.g): (r.n, r.sum) for r in rows.collect()}

        rows = TOTALS.transform(open_sources(session, TOTALS, self.source.workdir))
        writer = rows.writeStream.outputMode(TOTALS.output_mode).foreachBatch(collect)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        writer = writer.trigger(availableNow=True)
        return (writer.queryName(name) if name else writer).start()

    def advance(self, batches: int, confs: Mapping[str, str], name: str = "") -> None:
        """Gives the source so many more batches, and has the query read all there are."""
        self.source.feed(batches)
        try:
            self.start(self.session(confs), name).awaitTermination()
        finally:
            unload_state(self.source.spark)
        if self.batches_run:
            assert self.result == totals_after(self.source.batches)


def entries(checkpoint: Path, log: str) -> list[int]:
    """The batches in one of Spark's logs."""
    return sorted(int(path.name) for path in (checkpoint / log).glob("[0-9]*"))


def partitions(checkpoint: Path, batch: int) -> int:
    """The parallelism that the offset log sets for a batch."""
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    return int(json.loads(lines[1])["conf"][PARTITIONS])


def partitions_of_state(checkpoint: Path, batch: int) -> int:
    """The number of partitions whose state a batch has committed."""
    line = (checkpoint / "commits" / str(batch)).read_text().splitlines()[1]
    return len(json.loads(line)["stateUniqueIds"]["0"])


def query_id(checkpoint: Path) -> str:
    return str(json.loads((checkpoint / "metadata").read_text())["id"])
