import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import sparkckpt
from sparkckpt import jar
from sparkckpt.cli.console import main
from sparkckpt.conf import OPTIONS, PREFIX
from sparkckpt.session import PLUGIN


@pytest.fixture
def jar_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home, jars = tmp_path / "spark", tmp_path / "jars"
    for path in (home / "jars" / "spark-core_2.13-4.3.0.jar", jars / "sparkckpt-spark-4.3.jar"):
        path.parent.mkdir(parents=True)
        path.touch()
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setattr(jar, "JARS", jars)
    return jars / "sparkckpt-spark-4.3.jar"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_version() -> None:
    assert run("--version").output == f"sparkckpt, version {sparkckpt.__version__}\n"


def test_a_command_does_not_wait_for_libraries_it_may_not_need() -> None:
    slow = "{'pandas', 'pyspark', 'pyarrow.dataset', 'duckdb'}"
    script = f"import sys, sparkckpt.cli.console; print({slow} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout == "set()\n", found.stderr


def test_jar_prints_the_path_alone(jar_file: Path) -> None:
    assert run("jar").output == f"{jar_file}\n"
    assert json.loads(run("--output", "json", "jar").output) == {"jar": str(jar_file)}


def test_an_error_is_one_message_and_status_1(jar_file: Path) -> None:
    jar_file.unlink()
    outcome = run("jar")
    assert outcome.exit_code == 1
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("error: sparkckpt has no jar for Spark 4.3")
    outcome = run("--output", "json", "jar")
    assert json.loads(outcome.stderr)["error"] == "JarNotFoundError"


def test_submit_args_name_jar_and_plugin(jar_file: Path) -> None:
    expected = f"--conf spark.jars={jar_file} --conf spark.plugins={PLUGIN}"
    assert run("submit-args").output == expected + "\n"
    outcome = run("submit-args", "--properties", "--set", "maxParallelism=128")
    assert outcome.output.splitlines() == [
        f"spark.jars {jar_file}",
        f"spark.plugins {PLUGIN}",
        f"{PREFIX}maxParallelism 128",
    ]


def test_submit_args_keep_what_spark_defaults_set(jar_file: Path) -> None:
    defaults = jar_file.parents[1] / "spark" / "conf" / "spark-defaults.conf"
    defaults.parent.mkdir()
    defaults.write_text("spark.jars /their.jar\nspark.plugins their.Plugin\n")
    assert json.loads(run("--output", "json", "submit-args").output) == {
        "spark.jars": f"/their.jar,{jar_file}",
        "spark.plugins": f"their.Plugin,{PLUGIN}",
    }
    given = json.loads(run("--output", "json", "submit-args", "--jars", "/a.jar,/b.jar").output)
    assert given["spark.jars"] == f"/a.jar,/b.jar,{jar_file}"


@pytest.mark.usefixtures("jar_file")
def test_submit_args_refuse_what_is_no_option() -> None:
    outcome = run("submit-args", "--set", "maxparallelism=1")
    assert outcome.exit_code == 1
    assert "Did you mean max_parallelism or maxParallelism?" in outcome.stderr
    assert run("submit-args", "--set", "maxParallelism").exit_code == 2


def test_options_list_every_option() -> None:
    rows = json.loads(run("--output", "json", "options").output)
    assert [row["option"] for row in rows] == [option.name for option in OPTIONS]
    text = run("options").output
    assert all(option.name in text for option in OPTIONS)
