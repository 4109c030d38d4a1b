"""Enabling sparkckpt for real: the shared session, spark-submit, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import sparkckpt
from sparkckpt.conf import OPTIONS
from sparkckpt.jar import SparkInstallation
from sparkckpt.keygroups import key_group_of, partition_of, range_of
from sparkckpt.session import PLUGIN

SUBMITTED_JOB = """
import json, sys
from pyspark.sql import SparkSession
import sparkckpt

def outcome_of(builder, **options):
    try:
        spark = sparkckpt.configure(builder, **options).getOrCreate()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    conf = {key: spark.conf.get(key, None) for key in KEYS}
    spark.stop()
    return conf

KEYS = json.loads(sys.argv[1])
outcomes = {
    "submitted": outcome_of(SparkSession.builder),
    "contradicted": outcome_of(SparkSession.builder.config(KEYS[0], "their.Provider")),
}
print("OUTCOMES", json.dumps(outcomes))
"""

LATE_JOB = """
import json
from pyspark.sql import SparkSession
import sparkckpt
from sparkckpt.errors import SparkckptError

def refusal():
    try:
        sparkckpt.configure(SparkSession.builder)
    except SparkckptError as error:
        return f"{type(error).__name__}: {error}"

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
running = refusal()
spark.stop()
print("OUTCOMES", json.dumps({"running": running, "stopped": refusal()}))
"""

PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
EXTENSIONS_KEY = "spark.sql.extensions"
FORMAT_KEY = "spark.sql.streaming.stateStore.checkpointFormatVersion"
KEYS = [PROVIDER_KEY, EXTENSIONS_KEY, FORMAT_KEY, "spark.plugins", "spark.jars"]


def outcomes_of(command: list[str], directory: Path) -> dict[str, Any]:
    """What the job printed after the word OUTCOMES."""
    process = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=240)
    lines = [line for line in process.stdout.splitlines() if line.startswith("OUTCOMES ")]
    assert lines, process.stdout + process.stderr
    return dict(json.loads(lines[0].removeprefix("OUTCOMES ")))


def test_the_plugin_sets_all_that_the_backend_needs(spark: SparkSession) -> None:
    assert PLUGIN in spark.conf.get("spark.plugins").split(",")
    assert spark.conf.get(PROVIDER_KEY).startswith("org.apache.spark.sql.sparkckpt.")
    assert "org.apache.spark.sql.sparkckpt." in spark.conf.get(EXTENSIONS_KEY)
    assert spark.conf.get(FORMAT_KEY) == "2"
    assert sparkckpt.configure(SparkSession.builder).getOrCreate() is spark


def test_the_jvm_side_knows_the_same_options_with_the_same_defaults(spark: SparkSession) -> None:
    declared = jvm_object(spark, "SparkckptConf")
    options = [
        getattr(declared, method.getName())()
        for method in declared.getClass().getMethods()
        if method.getReturnType().getSimpleName() == "ConfOption" and not method.getParameterCount()
    ]
    assert {option.key(): option.default() for option in options} == {
        option.key: option.default for option in OPTIONS
    }


def test_the_jvm_side_has_the_same_key_groups(spark: SparkSession) -> None:
    groups = jvm_object(spark, "KeyGroups")
    for key_hash in (-(2**31), -32769, -1, 0, 1, 32768, 2**31 - 1):
        for m in (1, 7, 128, 32768):
            key_group = key_group_of(key_hash, m)
            assert groups.keyGroupOf(key_hash, m) == key_group
            for n in (1, 2, 3, 200, 1000):
                partition = partition_of(key_group, n, m)
                owned = groups.rangeOf(partition, n, m)
                assert groups.partitionOf(key_group, n, m) == partition
                assert (owned.first(), owned.last()) == (
                    range_of(partition, n, m).first,
                    range_of(partition, n, m).last,
                )


def jvm_object(spark: SparkSession, name: str) -> Any:
    package = spark.sparkContext._jvm.org.apache.spark.sql.sparkckpt  # type: ignore[union-attr]
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def test_spark_submit_with_the_printed_properties(jars: list[Path], tmp_path: Path) -> None:
    """Jar and plugin from the properties, their jar kept; a contradicting conf is named."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(f"spark.jars {jars[1]}\n")
    environment = os.environ | {"SPARK_CONF_DIR": str(tmp_path / "conf")}
    properties = subprocess.run(
        [sys.executable, "-m", "sparkckpt", "submit-args", "--properties"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (tmp_path / "job.properties").write_text(f"{properties}\nspark.ui.enabled false\n")
    (tmp_path / "job.py").write_text(SUBMITTED_JOB)
    spark_submit = SparkInstallation.in_use().home / "bin" / "spark-submit"
    outcomes = outcomes_of(
        [
            *(str(spark_submit), "--master", "local[1]"),
            *("--properties-file", str(tmp_path / "job.properties")),
            *(str(tmp_path / "job.py"), json.dumps(KEYS)),
        ],
        tmp_path,
    )
    submitted = outcomes["submitted"]
    assert submitted["spark.plugins"] == PLUGIN
    assert [Path(jar).name for jar in submitted["spark.jars"].split(",")] == [
        jars[1].name,
        jars[0].name,
    ]
    assert submitted[PROVIDER_KEY].startswith("org.apache.spark.sql.sparkckpt.")
    assert PROVIDER_KEY in outcomes["contradicted"]
    assert "their.Provider" in outcomes["contradicted"]


def test_a_session_that_runs_without_the_plugin_is_refused(tmp_path: Path) -> None:
    outcomes = outcomes_of([sys.executable, "-c", LATE_JOB], tmp_path)
    assert outcomes["running"].startswith(
        "SessionAlreadyRunningError: The running Spark application"
    )
    assert "before the first getOrCreate()" in outcomes["running"]
    assert "JVM was started without sparkckpt-spark-" in outcomes["stopped"]
