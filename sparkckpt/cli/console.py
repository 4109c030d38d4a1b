"""The `sparkckpt` command: thin click commands over the Python API.

A command parses its arguments, makes one call and hands the result to an `Output`. No decision and
no formatting belongs here, so that all that the command line can do can be done from Python.
"""

import os
import shlex
from pathlib import Path
from typing import Any

import click

import sparkckpt
from sparkckpt import conf, demo
from sparkckpt.cli.output import JsonOutput, Output, TextOutput
from sparkckpt.errors import SparkckptError
from sparkckpt.jar import SparkInstallation, jar_path
from sparkckpt.launch import JARS_KEY, LaunchSettings
from sparkckpt.session import enabling_settings


class _Commands(click.Group):
    """Turns an error of ours into its message and exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SparkckptError as error:
            ctx.obj.error(error)
            ctx.exit(1)


@click.group(cls=_Commands)
@click.version_option(sparkckpt.__version__, prog_name="sparkckpt")
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How results are printed.",
)
@click.pass_context
def main(ctx: click.Context, output: str) -> None:
    """State backend, checkpoints and savepoints for Spark Structured Streaming."""
    ctx.obj = JsonOutput() if output == "json" else TextOutput()


@main.command("jar")
@click.pass_obj
def show_jar(output: Output) -> None:
    """Print the path of the jar that fits the installed Spark."""
    output.value("jar", str(jar_path()))


@main.command()
@click.option("--properties", is_flag=True, help="Print lines of a properties file instead.")
@click.option("--jars", metavar="JARS", help="Jars of the job, as for spark-submit, to go along.")
@click.option(
    "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Also set this option."
)
@click.pass_obj
def submit_args(
    output: Output, properties: bool, jars: str | None, assignments: tuple[str, ...]
) -> None:
    """Print what spark-submit needs to run a job on sparkckpt.

    Jars and plugins that spark-defaults.conf sets are kept: spark-submit would replace them. Give
    further jars here: where spark-submit is given --jars, it ignores spark.jars.
    """
    spark = SparkInstallation.in_use()
    launch = LaunchSettings.read({**os.environ, "PYSPARK_SUBMIT_ARGS": ""}, spark.home)
    settings = enabling_settings(jar_path(spark), launch, {JARS_KEY: jars} if jars else {})
    settings |= conf.settings_of(dict(_assignment(text) for text in assignments))
    if properties:
        text = "\n".join(f"{key} {value}" for key, value in settings.items())
    else:
        text = shlex.join(
            word for key, value in settings.items() for word in ("--conf", f"{key}={value}")
        )
    output.settings(settings, text)


def _assignment(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint="--set")
    return name, value


@main.command("options")
@click.pass_obj
def show_options(output: Output) -> None:
    """List every option with its type, default and meaning."""
    output.rows(
        f"Options, each named {conf.PREFIX}<option>",
        [
            {
                "option": option.name,
                "type": option.kind,
                "default": option.default_text,
                "meaning": option.doc,
            }
            for option in conf.OPTIONS
        ],
    )


@main.command("demo")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where to put input, output and checkpoint.  [default: a new temporary directory]",
)
@click.pass_obj
def run_demo(output: Output, directory: Path | None) -> None:
    """Run a streaming job, restart it from its checkpoint, and look into its state."""
    demo.run(output, directory)
