import shlex
from pathlib import Path

import pytest

from sparkckpt.launch import LaunchSettings, append_item, read_properties


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        (None, "new"),
        ("", "new"),
        ("a", "a,new"),
        ("a, b ,", "a,b,new"),
        ("a,new,b", "a,new,b"),
    ],
)
def test_append_keeps_what_is_there_and_never_doubles(current: str | None, expected: str) -> None:
    assert append_item(current, "new") == expected


def test_properties_are_read_as_spark_reads_them() -> None:
    text = (
        "# comment\n! comment\n\nspark.a 1\nspark.b=2\nspark.c : 3\nspark.d\tx=y,z\n"
        "spark.jars /a.jar,\\\n    /b.jar\nspark.empty\n"
    )
    assert read_properties(text) == {
        "spark.a": "1",
        "spark.b": "2",
        "spark.c": "3",
        "spark.d": "x=y,z",
        "spark.jars": "/a.jar,/b.jar",
        "spark.empty": "",
    }


def settings(submit_args: str = "", **defaults: str) -> LaunchSettings:
    return LaunchSettings(
        tuple(shlex.split(submit_args)), {f"spark.{k}": v for k, v in defaults.items()}
    )


@pytest.mark.parametrize(
    ("launch", "builder", "expected"),
    [
        (settings(), {}, None),
        (settings(jars="d"), {}, "d"),
        (settings(jars="d"), {"spark.jars": "b"}, "b"),
        (settings("--jars s pyspark-shell", jars="d"), {"spark.jars": "b"}, "s"),
        (settings("--jars=s pyspark-shell"), {}, "s"),
        (settings("--conf spark.jars=s pyspark-shell"), {"spark.jars": "b"}, "s"),
        (settings("--conf=spark.jars=s pyspark-shell"), {}, "s"),
        (settings("-c spark.jars=s -c spark.jars=t pyspark-shell"), {}, "t"),
        (settings("--conf spark.jars.packages=p pyspark-shell"), {}, None),
    ],
)
def test_the_strongest_source_wins(
    launch: LaunchSettings, builder: dict[str, object], expected: str | None
) -> None:
    assert launch.value_of("spark.jars", builder) == expected


def test_submit_arguments_are_extended_where_they_stand() -> None:
    launch = settings(
        "--master local --jars 'a b.jar' --conf 'spark.jars=c' --conf spark.x=1 pyspark-shell"
    )
    assert launch.submit_args_with("spark.jars", "new") == (
        *("--master", "local", "--jars", "new", "--conf", "spark.jars=new"),
        *("--conf", "spark.x=1", "pyspark-shell"),
    )
    assert launch.submit_args_with("spark.plugins", "new") == launch.submit_args


def test_defaults_come_from_the_directory_or_the_file_that_is_named(tmp_path: Path) -> None:
    for name in ("home/conf", "other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "spark-defaults.conf").write_text(f"spark.jars {name}\n")
    (tmp_path / "named.properties").write_text("spark.jars named\n")

    def jars(environment: dict[str, str]) -> str | None:
        return LaunchSettings.read(environment, tmp_path / "home").value_of("spark.jars", {})

    conf_dir = {"SPARK_CONF_DIR": str(tmp_path / "other")}
    properties = f"--properties-file {tmp_path / 'named.properties'} pyspark-shell"
    assert jars({}) == "home/conf"
    assert jars(conf_dir) == "other"
    assert jars(conf_dir | {"PYSPARK_SUBMIT_ARGS": properties}) == "named"
    assert jars({"SPARK_CONF_DIR": str(tmp_path)}) is None
