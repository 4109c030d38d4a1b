"""The child process of the Flink benchmark; runs in the environment that has PyFlink.

It knows nothing of this package and needs nothing but PyFlink. One source puts every key in once,
another draws keys at random without end; both are Flink's own generators, which cost next to
nothing. The job sums and counts per key, in SQL or in a Python function in thread mode, with a
checkpoint every second. Once the first source is done, the records that reach the stateful operator
are counted for a while. A job that fails or restarts is no measurement.
"""

import json
import socket
import sys
import time
import urllib.request
from pathlib import Path

from pyflink.common import Configuration, Row, Types
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.table import StreamTableEnvironment

CHECKPOINT_INTERVAL = "1 s"
POLL_SECONDS = 0.1
FILL_TIMEOUT_SECONDS = 900
WARMUP_SECONDS = 5
UNLIMITED = 1_000_000_000


class Totals(KeyedProcessFunction):
    """Sum and count per key, put out whenever they change."""

    def open(self, runtime_context):
        types = Types.TUPLE([Types.LONG(), Types.LONG()])
        self._totals = runtime_context.get_state(ValueStateDescriptor("totals", types))

    def process_element(self, value, ctx):
        total, n = self._totals.value() or (0, 0)
        total, n = total + value[1], n + 1
        self._totals.update((total, n))
        yield Row(value[0], total, n)


def main(arguments):
    job = json.loads(Path(arguments[0]).read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client = start(job, port)
    try:
        measured = measure(f"http://localhost:{port}/jobs/{client.get_job_id()}", job["seconds"])
    finally:
        client.cancel().result()
    Path(arguments[1]).write_text(json.dumps(measured))


def start(job, port):
    settings = {
        "parallelism.default": str(job["parallelism"]),
        "taskmanager.numberOfTaskSlots": str(job["parallelism"]),
        "state.backend.type": job["state_backend"],
        "execution.checkpointing.interval": CHECKPOINT_INTERVAL,
        "execution.checkpointing.dir": Path(job["directory"], "checkpoints").as_uri(),
        "execution.checkpointing.incremental": "true",
        "python.execution-mode": "thread",
        "python.executable": sys.executable,
        "restart-strategy.type": "none",
        "rest.port": str(port),
        "metrics.fetcher.update-interval": "200",
    }
    configuration = Configuration()
    for key, value in settings.items():
        configuration.set_string(key, value)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    tables = StreamTableEnvironment.create(environment)
    last = job["keys"] - 1
    filling = f"'fields.k.kind'='sequence', 'fields.k.start'='0', 'fields.k.end'='{last}'"
    _create_source(tables, "filling", filling)
    _create_source(tables, "changes", f"'fields.k.min'='0', 'fields.k.max'='{last}'")
    tables.execute_sql(
        "CREATE TABLE discarded (k BIGINT, total BIGINT, n BIGINT) WITH ('connector'='blackhole')"
    )
    rows = "SELECT k, v FROM filling UNION ALL SELECT k, v FROM changes"
    if job["api"] == "sql":
        query = f"SELECT k, SUM(v), COUNT(*) FROM ({rows}) GROUP BY k"
    else:
        stream = tables.to_data_stream(tables.sql_query(rows))
        result = Types.ROW_NAMED(["k", "total", "n"], [Types.LONG()] * 3)
        totals = stream.key_by(lambda row: row[0], key_type=Types.LONG()).process(Totals(), result)
        tables.create_temporary_view("totals", totals)
        query = "SELECT k, total, n FROM totals"
    return tables.execute_sql(f"INSERT INTO discarded {query}").get_job_client()


def _create_source(tables, name, keys):
    tables.execute_sql(
        f"CREATE TABLE {name} (k BIGINT, v BIGINT) WITH ('connector'='datagen', {keys}, "
        f"'rows-per-second'='{UNLIMITED}', 'fields.v.min'='0', 'fields.v.max'='999')"
    )


def measure(url, seconds):
    """Records a second at the stateful operator; by the moments at which the counter moves."""
    await_fill(url)
    time.sleep(WARMUP_SECONDS)
    skipped = len(_get(f"{url}/checkpoints")["history"])
    moves = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(moves) < 2:
        if time.monotonic() > end + seconds + FILL_TIMEOUT_SECONDS:
            raise SystemExit("No records have reached the stateful operator")
        count = _vertices(url)[-1]["metrics"]["read-records"]
        if not moves or count > moves[-1][1]:
            moves.append((time.monotonic(), count))
        time.sleep(POLL_SECONDS)
    (begin, first), (finish, last) = moves[0], moves[-1]
    checkpoints = _get(f"{url}/checkpoints")
    completed = [c for c in checkpoints["history"] if c["status"] == "COMPLETED"]
    if not completed:
        raise SystemExit("No checkpoint was completed: the rate would be one without checkpoints")
    newest = completed[: max(1, len(checkpoints["history"]) - skipped)]
    return {
        "rows_per_second": (last - first) / (finish - begin),
        "rows": last - first,
        "seconds": finish - begin,
        "checkpoints": len(newest),
        "checkpoint_ms": [c["end_to_end_duration"] for c in newest],
        "checkpoint_bytes": [c["checkpointed_size"] for c in newest],
        "flink_version": _version(),
    }


def await_fill(url):
    deadline = time.monotonic() + FILL_TIMEOUT_SECONDS
    while not any("filling" in v["name"] and v["status"] == "FINISHED" for v in _vertices(url)):
        if time.monotonic() > deadline:
            raise SystemExit(f"The state was not filled after {FILL_TIMEOUT_SECONDS} s")
        time.sleep(POLL_SECONDS)


def _vertices(url):
    job = _get(url)
    if job["state"] not in ("CREATED", "INITIALIZING", "RUNNING"):
        failure = _get(f"{url}/exceptions")["exceptionHistory"]["entries"]
        cause = failure[0]["stacktrace"] if failure else "no cause given"
        raise SystemExit(f"The job is {job['state']}: {cause}")
    return job["vertices"]


def _get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def _version():
    from pyflink.version import __version__

    return __version__


if __name__ == "__main__":
    main(sys.argv[1:])
