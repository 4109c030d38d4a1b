"""Writes tests/unit/data: state of the real backend, and what Spark says is in it.

Run `python -m tests.spark.make_golden` after the format has changed, and commit the result. What
the rows are is asked of Spark's own state data source, so that the readers are held against
something that does not share a line with them.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sparkckpt
from sparkckpt.format import StateHandle, load_handle
from sparkckpt.storage import Storage
from tests.spark import jobs, python_jobs
from tests.spark.streams import PARTITIONS, STATE_STORE, Backend, Job, checkpoint_of, run

DATA = Path(__file__).resolve().parent.parent / "unit" / "data"
PARTITION = 0
NO_INLINING = {STATE_STORE + "sparkckpt.inlineThreshold": "0"}
SMALL = {
    PARTITIONS: "2",
    STATE_STORE + "sparkckpt.merge.maxDeltas": "4",
    STATE_STORE + "sparkckpt.recordBatchRows": "8",
}


def main() -> None:
    from pyspark.sql import SparkSession

    os.environ["TZ"] = "UTC"
    time.tzset()
    windows = Job.of(jobs.EVENTS, jobs.events(12), jobs.windowed)
    lists = python_jobs.with_state(python_jobs.Variables(pandas=False), batches=7)
    builder = SparkSession.builder.config("spark.sql.session.timeZone", "UTC")
    spark = sparkckpt.configure(builder.config("spark.ui.enabled", "false")).getOrCreate()
    with tempfile.TemporaryDirectory() as root:
        for name, job, confs in (
            ("inlined", windows, {}),
            ("files", windows, NO_INLINING),
            ("lists", lists, NO_INLINING),
        ):
            workdir = Path(root) / name
            run(spark, job, workdir, Backend(name, {**SMALL, **confs}))
            save(spark, name, checkpoint_of(workdir))
    spark.stop()


def save(spark: Any, name: str, checkpoint: Path) -> None:
    """Keeps the newest handle of one partition, the files it names, and their rows."""
    batch = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    committed = json.loads((checkpoint / "commits" / str(batch)).read_text().splitlines()[1])
    ((checkpoint_id,),) = [committed["stateUniqueIds"]["0"][PARTITION]]
    state, target = checkpoint / "state", DATA / name
    handle = load_handle(Storage.at(state), 0, PARTITION, batch + 1, checkpoint_id)
    shutil.rmtree(target, ignore_errors=True)
    files = {file.path for family in handle.families for file in family.files}
    for path in {handle.path, *files}:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(state / path, target / path)
    expected = {
        "handle": handle.path,
        "families": {family: rows_of(spark, checkpoint, family) for family in visible(handle)},
    }
    (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def visible(handle: StateHandle) -> list[str]:
    """The families that Spark's data source shows: not its own counters."""
    return [family.family for family in handle.families if not family.family.startswith("$")]


def rows_of(spark: Any, checkpoint: Path, family: str) -> list[Any]:
    reader = spark.read.format("statestore")
    if family != "default":
        reader = reader.option("stateVarName", family)
    rows = reader.load(str(checkpoint)).where(f"partition_id = {PARTITION}").collect()
    return sorted((plain(entry_of(row.asDict(recursive=True))) for row in rows), key=json.dumps)


def entry_of(row: Mapping[str, Any]) -> list[Any]:
    """Key and value as the state files have them, from the columns of the data source."""
    if "list_element" in row:
        return [row["key"], row["list_element"]]
    if "user_map_key" in row:
        return [{"key": row["key"], "userKey": row["user_map_key"]}, row["user_map_value"]]
    return [row["key"], row["value"]]


def plain(value: Any) -> Any:
    """The value in terms of JSON."""
    match value:
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case None | bool() | int() | str():
            return value
        case _:
            return value.replace(tzinfo=None).isoformat()


if __name__ == "__main__":
    main()
