"""The driver's end of the pipe, with a stand-in for the coordinator that keeps what it hears."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkckpt.conf import PREFIX
from sparkckpt.coordinator.wire import Frame
from sparkckpt.format.handle import StateHandle, read_description
from sparkckpt.storage import Storage
from tests.spark.faults import wait_until
from tests.spark.pipe_recorder import STOP_MESSAGE
from tests.spark.totals import PARALLELISM, RunningTotals

ROOT = Path(__file__).resolve().parents[2]
BATCHES = 3

JOB = """
import json, os, signal, sys, time
from pathlib import Path
from pyspark.sql import SparkSession
import sparkckpt
from tests.spark.faults import wait_until
from tests.spark.streams import feed, session_for, start
from tests.spark.totals import CONFS, TOTALS, RunningTotals

workdir, recorder, batches = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
records = workdir / "records"
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder.config("spark.log.level", "WARN")
spark = sparkckpt.configure(builder, coordinator_python=recorder).getOrCreate()

def pid():
    services = spark._jvm.org.apache.spark.sql.sparkckpt.coordinator.CoordinatorService
    child = services.active().get().processId()
    return child.get() if child.isDefined() else None

def recorded(kind):
    return [p for p in records.glob("frames-*") if f'["{kind}"' in p.read_text()]

off = {"spark.sql.streaming.stateStore.sparkckpt.coordinator.enabled": "false"}
RunningTotals(spark, workdir / "off", off).advance(1)
outcome = {"child of a query without coordinator": pid()}

RunningTotals(spark, workdir / "first", {}).advance(batches)
wait_until(lambda: (records / "storage.json").exists() and recorded("query_ended"))
first = pid()
os.kill(first, signal.SIGKILL)
wait_until(lambda: pid() is None)

(records / "stop").touch()
feed(TOTALS, workdir / "stopped", range(batches + 10))

def outlast_the_start_of_the_recorder(rows, batch):
    rows.collect()
    if batch == 0:
        wait_until(lambda: any("stopped/" in p.read_text() for p in recorded("query_started")))
        second = pid()
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: pid() not in (None, second))
    if batch > 0:
        wait_until((records / "stop-sent").exists)

session = session_for(spark, CONFS)
try:
    start(
        session, TOTALS, workdir / "stopped", outlast_the_start_of_the_recorder
    ).awaitTermination()
    outcome["error"] = None
except Exception as error:
    outcome["error"] = str(error)
outcome["restarted"] = pid() != first
spark.stop()
print("OUTCOME", json.dumps(outcome))
"""


BROKEN_JOB = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession
import sparkckpt
from tests.spark.streams import CONTINUALLY, feed, session_for, start
from tests.spark.totals import CONFS, TOTALS

workdir = Path(sys.argv[1])
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = sparkckpt.configure(builder, coordinator_python="/no/such/python").getOrCreate()
feed(TOTALS, workdir, [0])
query = start(session_for(spark, CONFS), TOTALS, workdir, lambda rows, _: rows.count(), CONTINUALLY)
query.processAllAvailable()
sys.stdin.readline()
feed(TOTALS, workdir, [1])
query.processAllAvailable()
query.stop()
sys.stdin.readline()
services = spark._jvm.org.apache.spark.sql.sparkckpt.coordinator.CoordinatorService
began = time.monotonic()
services.active().get().stop()
print("STOPPED", time.monotonic() - began)
spark.stop()
"""


class Recorded:
    """What the driver sent in the run of the job, by process."""

    def __init__(self, workdir: Path, outcome: dict[str, Any], log: str) -> None:
        self.workdir, self.outcome, self.log = workdir, outcome, log

    def frames(self, query: str) -> list[Frame]:
        """The frames about the runs of a query, in the order in which they came."""
        frames = []
        for path in sorted((self.workdir / "records").glob("frames-*")):
            for line in path.read_text().splitlines():
                kind, fields, payload = json.loads(line)
                frames.append(Frame(kind, fields, base64.b64decode(payload)))
        started = [f for f in frames if f.kind == "query_started"]
        runs = {
            f.text("runId")
            for f in started
            if f.text("checkpointLocation").endswith(f"/{query}/checkpoint")
        }
        return [f for f in frames if f.fields.get("runId") in runs]


@pytest.fixture(scope="module")
def recorded(jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    workdir = tmp_path_factory.mktemp("pipe")
    (workdir / "records").mkdir()
    recorder = workdir / "recorder"
    script = ROOT / "tests" / "spark" / "pipe_recorder.py"
    recorder.write_text(f"#!/bin/sh\nexec {sys.executable} {script}\n")
    recorder.chmod(0o755)
    (workdir / "job.py").write_text(JOB)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PIPE_RECORDS": str(workdir / "records"),
    }
    process = subprocess.run(
        [sys.executable, str(workdir / "job.py"), str(workdir), str(recorder), str(BATCHES)],
        cwd=workdir,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    lines = [line for line in process.stdout.splitlines() if line.startswith("OUTCOME ")]
    assert lines, process.stdout + process.stderr
    return Recorded(workdir, json.loads(lines[0].removeprefix("OUTCOME ")), process.stderr)


def test_a_run_is_announced_before_its_first_ack_and_ended_after_its_last(
    recorded: Recorded,
) -> None:
    frames = recorded.frames("first")
    kinds = [frame.kind for frame in frames]
    assert kinds[0] == "query_started"
    assert kinds[-1] == "query_ended"
    assert kinds.count("query_started") == kinds.count("query_ended") == 1
    started = frames[0].fields
    assert started["minBatchesToRetain"] == 100
    assert started["conf"]["merge.maxDeltas"] == "4"
    assert not any(name.startswith("internal") for name in started["conf"])
    metadata = json.loads((recorded.workdir / "first/checkpoint/metadata").read_text())
    assert started["queryId"] == metadata["id"]
    assert "error" not in frames[-1].fields


def test_a_coordinator_that_is_started_anew_is_told_that_the_run_is_not_new(
    recorded: Recorded,
) -> None:
    for query, resumed in (("first", [False]), ("stopped", [False, True])):
        started = [f for f in recorded.frames(query) if f.kind == "query_started"]
        assert [frame.fields["isResumed"] for frame in started] == resumed


def test_acks_carry_the_handles_as_they_lie_on_storage(recorded: Recorded) -> None:
    acks = [frame for frame in recorded.frames("first") if frame.kind == "ack"]
    acked = sorted((read_description(ack.payload, "ack") for ack in acks), key=order)
    totals = RunningTotals.__new__(RunningTotals)
    totals.workdir = recorded.workdir / "first"
    on_storage = sorted((h for batch in range(BATCHES) for h in totals.handles(batch)), key=order)
    assert acked == on_storage
    assert len(acked) == BATCHES * PARALLELISM
    for ack in acks:
        assert ack.number("bytesWritten") > 0
        assert ack.number("syncMs") >= 0 and ack.number("writeMs") >= 0
        assert ack.number("receivedMs") > 1_600_000_000_000
    assert len({ack.number("taskAttempt") for ack in acks}) == len(acks)


def order(handle: StateHandle) -> tuple[int, int]:
    return handle.version, handle.partition


def test_committed_batches_are_reported(recorded: Recorded) -> None:
    frames = recorded.frames("first")
    assert [f.number("batchId") for f in frames if f.kind == "progress"] == list(range(BATCHES))


def test_storage_is_that_of_spark(recorded: Recorded) -> None:
    tried = json.loads((recorded.workdir / "records/storage.json").read_text())
    assert tried == {
        "missing": ["FileNotFoundError"] * 3,
        "exists before": False,
        "create": None,
        "create again": "FileExistsError",
        "overwrite": None,
        "read": ["9876543210", "765", "10", "10"],
        "create deep": None,
        "copy": None,
        "copy what is missing": "FileNotFoundError",
        "read the copy": "9876543210",
        "list": ["/a", "/d"],
        "find": {"/a": 10, "/d/%24 e/b": 1, "/d/c": 10},
        "type": ["file", "directory"],
        "delete": None,
        "delete directory": "OSError",
        "left": {"/d/%24 e/b": 1, "/d/c": 10},
        "delete tree": None,
        "exists after": False,
    }
    storage = Storage.at(recorded.workdir / "first/checkpoint")
    assert not storage.exists("_sparkckpt/tried")


def test_a_query_can_be_stopped_with_an_error_its_user_sees(recorded: Recorded) -> None:
    assert "SPARKCKPT_CHECKPOINTS_FAILED" in recorded.outcome["error"]
    assert STOP_MESSAGE in recorded.outcome["error"]
    ended = recorded.frames("stopped")[-1]
    assert ended.kind == "query_ended"
    assert "SPARKCKPT_CHECKPOINTS_FAILED" in ended.fields["error"]


def test_a_process_runs_only_while_there_are_queries_for_it(recorded: Recorded) -> None:
    assert recorded.outcome["child of a query without coordinator"] is None
    assert recorded.outcome["restarted"]
    assert recorded.frames("off") == []


def test_a_coordinator_that_cannot_start_is_named_once_and_holds_up_nobody(
    jars: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(BROKEN_JOB)
    log = tmp_path / "log"
    commit = tmp_path / "query/checkpoint/commits/1"

    def logged(text: str) -> int:
        return log.read_text().count(text)

    with log.open("wb") as stderr:
        job = subprocess.Popen(
            [sys.executable, str(tmp_path / "job.py"), str(tmp_path / "query")],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            bufsize=0,
        )
    try:
        assert job.stdin is not None
        wait_until(lambda: logged("SPARKCKPT_COORDINATOR_KEEPS_DYING") or job.poll() is not None)
        job.stdin.write(b"go on\n")
        wait_until(lambda: commit.exists() or job.poll() is not None)
        tries = logged("cannot be started")
        # The next try is then a while ahead: the job must not end later for it.
        wait_until(lambda: logged("cannot be started") > tries or job.poll() is not None)
        output, _ = job.communicate(b"stop\n", timeout=200)
        assert job.returncode == 0, log.read_text()
    finally:
        job.kill()
    assert logged("SPARKCKPT_COORDINATOR_KEEPS_DYING") == 1
    assert commit.exists()
    (stopped,) = re.findall(r"STOPPED (\S+)", output.decode())
    assert float(stopped) < 3


DRIVER_KEY, PYTHON_KEY = "spark.pyspark.driver.python", "spark.pyspark.python"
OWN_KEY = PREFIX + "coordinator.python"


@pytest.mark.parametrize(
    ("confs", "environment", "chosen"),
    [
        ({}, {}, "python3"),
        ({}, {"PYSPARK_PYTHON": "/p"}, "/p"),
        ({PYTHON_KEY: "/c"}, {"PYSPARK_PYTHON": "/p"}, "/c"),
        ({PYTHON_KEY: "/c"}, {"PYSPARK_DRIVER_PYTHON": "/d"}, "/d"),
        ({DRIVER_KEY: "/x"}, {"PYSPARK_DRIVER_PYTHON": "/d"}, "/x"),
        ({PYTHON_KEY: "/c"}, {"PYSPARK_DRIVER_PYTHON": "/bin/jupyter-lab"}, "/c"),
        ({DRIVER_KEY: "/opt/jupyter/bin/python"}, {}, "/opt/jupyter/bin/python"),
        ({DRIVER_KEY: "ipython3"}, {"PYSPARK_PYTHON": ""}, "python3"),
        ({OWN_KEY: "/own", DRIVER_KEY: "/x"}, {}, "/own"),
        ({OWN_KEY: "none", DRIVER_KEY: "/x"}, {}, "/x"),
    ],
)
def test_the_interpreter_is_the_drivers(
    spark: SparkSession, confs: dict[str, str], environment: dict[str, str], chosen: str
) -> None:
    assert harness(spark).interpreter(confs, environment) == chosen


def test_the_package_is_found_where_the_driver_found_it(spark: SparkSession) -> None:
    confs = {
        PREFIX + "internal.packagePath": "/repo",
        "spark.submit.pyFiles": "/a.zip,file:/b/c.egg, hdfs://host/d.zip",
    }
    assert (
        harness(spark).pythonPath(confs, {"PYTHONPATH": "/x:/y"}) == "/repo:/a.zip:/b/c.egg:/x:/y"
    )
    assert harness(spark).pythonPath({}, {}) == ""


def harness(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.sparkckpt.CoordinatorHarness
