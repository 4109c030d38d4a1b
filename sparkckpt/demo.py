"""The demonstration behind `make demo`: a stateful job that is stopped, restarted and looked into.

It keeps a running total per user on embedded local Spark, ends the application half-way, starts a
new one on the same checkpoint and compares the result with totals computed without Spark. It must
fail when they differ, and must never need anything but this package and its dependencies.
"""

import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkckpt.checkpoints import list_checkpoints, verify
from sparkckpt.errors import SparkckptError
from sparkckpt.session import configure

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

    from sparkckpt.cli.output import Output

FILES = 6
ROWS_PER_FILE = 1000
USERS = 200
PARALLELISM = 2
SEED = 7

LOGGING = "log4j2.properties"
LOG_ERRORS_ONLY = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


class DemoFailedError(SparkckptError):
    """The demonstration's result is not what it must be."""


def run(output: "Output", directory: Path | None = None) -> None:
    """Runs the whole demonstration in `directory`, by default a new temporary one."""
    root = directory or Path(tempfile.mkdtemp(prefix="sparkckpt-demo-"))
    incoming, checkpoint = root / "input", root / "checkpoint"
    incoming.mkdir(parents=True)
    (root / LOGGING).write_text(LOG_ERRORS_ONLY)
    generator = random.Random(SEED)
    expected: Counter[str] = Counter()

    output.note(f"A running total per user with applyInPandasWithState, in {root}")
    output.note(f"1. {FILES // 2} files arrive; the job takes one per batch and is stopped.")
    expected += _write_files(incoming, range(FILES // 2), generator)
    first = _run_application(root)
    output.note(f"   Application ended after batch {first}.")

    output.note(f"2. {FILES - FILES // 2} more files arrive; a new application continues.")
    expected += _write_files(incoming, range(FILES // 2, FILES), generator)
    last = _run_application(root)
    output.note(f"   It resumed at batch {first + 1} and ended after batch {last}.")

    totals = _latest_totals(root / "output")
    _compare(totals, expected, str(root / "output"))
    if totals.keys() != expected.keys():
        raise DemoFailedError(f"The output has {len(totals)} users, the input {len(expected)}.")
    output.note(
        f"3. {len(totals)} users, {sum(totals.values())} in total: equal to the sum of the input "
        "computed without Spark."
    )

    files = sorted(checkpoint.glob("state/0/*/*.delta.arrow"), key=_version_of)
    output.note(f"4. The state lies in {len(files)} Arrow files under {checkpoint / 'state'}")
    newest = files[-1]
    changes = _changes_in(newest)
    in_state = {change["user (key)"]: change["total (value)"] for change in changes}
    _compare(in_state, expected, str(newest))
    output.note(f"   The newest, {newest.relative_to(checkpoint)}, read with pyarrow:")
    output.rows(f"{min(5, len(changes))} of its {len(changes)} rows", changes[:5])

    problems = verify(checkpoint)
    if problems.num_rows:
        raise DemoFailedError(f"The checkpoints in {checkpoint} are damaged: {problems}")
    completed = list_checkpoints(checkpoint).to_pylist()
    if completed[-1]["batch_id"] != last:
        raise DemoFailedError(f"The last checkpoint in {checkpoint} is {completed[-1]}.")
    output.note(
        f"5. {len(completed)} checkpoints are complete and sound, the newest that of batch {last}: "
        f"see `sparkckpt list {checkpoint}`, and `sparkckpt show`, `verify`."
    )


def _run_application(root: Path) -> int:
    """One Spark application that processes all the input there is; its last batch's id."""
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.appName("sparkckpt-demo")
        .master(f"local[{PARALLELISM}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={root / LOGGING}")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(PARALLELISM))
    )
    spark = configure(builder, inline_threshold=0).getOrCreate()
    try:
        query = (
            _running_totals(spark, root / "input")
            .writeStream.outputMode("update")
            .option("checkpointLocation", str(root / "checkpoint"))
            .foreachBatch(_BatchWriter(str(root / "output")))
            .start()
        )
        query.processAllAvailable()
        progress = query.lastProgress
        query.stop()
        if progress is None:
            raise DemoFailedError(f"The query on {root} ran no batch; its log says why.")
        return int(progress["batchId"])
    finally:
        spark.stop()


def _running_totals(spark: "SparkSession", incoming: Path) -> "DataFrame":
    def add_up(
        key: Any, frames: Iterator["pd.DataFrame"], state: "GroupState"
    ) -> Iterator["pd.DataFrame"]:
        import pandas as pd

        before = state.get[0] if state.exists else 0
        total = before + sum(int(frame["amount"].sum()) for frame in frames)
        state.update((total,))
        yield pd.DataFrame({"user": [key[0]], "total": [total]})

    return (
        spark.readStream.schema("user string, amount long")
        .option("maxFilesPerTrigger", 1)
        .json(str(incoming))
        .groupBy("user")
        .applyInPandasWithState(
            add_up, "user string, total long", "total long", "update", "NoTimeout"
        )
    )


class _BatchWriter:
    """Writes a batch's totals to a directory of its own, so that a repeated batch replaces it."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def __call__(self, batch: "DataFrame", batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(f"{self.directory}/batch={batch_id}")


def _write_files(directory: Path, numbers: range, generator: random.Random) -> Counter[str]:
    """Drops files with random amounts into `directory`; what they add up to per user."""
    sums: Counter[str] = Counter()
    for number in numbers:
        rows = [
            (f"user-{generator.randrange(USERS)}", generator.randrange(1, 100))
            for _ in range(ROWS_PER_FILE)
        ]
        for user, amount in rows:
            sums[user] += amount
        lines = (json.dumps({"user": user, "amount": amount}) for user, amount in rows)
        partial = directory / f".{number}.json"
        partial.write_text("\n".join(lines))
        partial.rename(directory / f"{number}.json")
    return sums


def _latest_totals(directory: Path) -> dict[str, int]:
    totals: dict[str, int] = {}
    for batch in sorted(directory.glob("batch=*"), key=lambda path: int(path.name[6:])):
        table = pq.ParquetDataset(sorted(batch.glob("*.parquet"))).read(["user", "total"])
        totals |= {row["user"]: row["total"] for row in table.to_pylist()}
    return totals


def _compare(totals: Mapping[str, int], expected: Mapping[str, int], where: str) -> None:
    wrong = sorted(user for user in totals if totals[user] != expected.get(user))
    if wrong:
        raise DemoFailedError(
            f"{len(wrong)} totals in {where} are wrong: {wrong[0]} has {totals[wrong[0]]} and "
            f"should have {expected.get(wrong[0])}."
        )


def _version_of(path: Path) -> int:
    return int(path.name.partition("_")[0])


def _changes_in(path: Path) -> list[dict[str, Any]]:
    """The rows of a state file; `groupState` is what Spark calls a function's own state."""
    with pa.ipc.open_file(path) as reader:
        rows = reader.read_all().to_pylist()
    return [
        {
            "key group": row["kg"],
            "user (key)": row["key"]["user"],
            "total (value)": row["value"]["groupState"]["total"],
        }
        for row in rows
    ]
