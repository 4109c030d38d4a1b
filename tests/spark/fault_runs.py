"""Runs driver programs as processes of their own, lets faults strike them, and restarts them."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.spark.fault_driver import Program, output_of, read_batches, windows
from tests.spark.faults import Fault, Faults, running_sums, wait_until
from tests.spark.streams import Output, feed

ROOT = Path(__file__).resolve().parents[2]


def launch(program: Program) -> subprocess.Popen[bytes]:
    path = str(program.save())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    with log_of(program).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.fault_driver", path],
            cwd=program.workdir,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def log_of(program: Program) -> Path:
    return program.workdir / "driver.log"


def finish(driver: subprocess.Popen[bytes], program: Program) -> None:
    """Wait for the driver, which must end well; whatever happens, nothing of it is left."""
    try:
        code = driver.wait(timeout=280)
        assert code == 0, log_of(program).read_text()[-4000:]
    finally:
        kill(driver)


def kill(driver: subprocess.Popen[bytes]) -> None:
    """kill -9 for the Python process and its JVM."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def run_with_faults(
    workdir: Path,
    master: str,
    planned: dict[tuple[int, int], Fault],
    batches: int = 5,
    **confs: str,
) -> Output:
    """The running sums of a driver in which all these faults have struck."""
    markers = workdir / "markers"
    markers.mkdir(parents=True)
    faults = Faults(str(markers), planned)
    program = Program(workdir, master, faults, {f"spark.{k}": v for k, v in confs.items()})
    feed(running_sums(batches=batches), workdir / "sums", range(batches))
    finish(launch(program), program)
    assert faults.struck() == len(planned)
    return read_batches(output_of(workdir, "sums"))


def run_with_kills(
    workdir: Path, rng: random.Random, batches: int, kills: int
) -> tuple[Output, Output]:
    """The running sums and the windows of drivers that were killed at random moments.

    A file source that dies between its own log and the query's puts two files into one batch, and
    batches could not be compared; so there is never more than one file that it has not seen.
    """
    inputs = {"sums": running_sums(batches=batches), "windows": windows(batches)}
    program = Program(workdir, "local[2]", until_told=True)
    outputs = [output_of(workdir, name) for name in inputs]
    killed = rng.sample(range(1, batches), k=kills)
    for name in inputs:
        (workdir / name).mkdir()
    driver = launch(program)
    try:
        for batch in range(batches):
            for name, job in inputs.items():
                feed(job, workdir / name, [batch])
            if batch in killed:
                time.sleep(rng.uniform(0, 1.0))  # The moment is the fault: nothing to wait for.
                kill(driver)
                driver = launch(program)
            wait_for_batch(driver, outputs, batch)
            assert driver.poll() is None, log_of(program).read_text()[-4000:]
        program.told_to_stop.touch()
        finish(driver, program)
    finally:
        kill(driver)
    sums, windowed = map(read_batches, outputs)
    return sums, windowed


def wait_for_batch(driver: subprocess.Popen[bytes], outputs: list[Path], batch: int) -> None:
    def written() -> bool:
        return all((output / f"{batch}.json").exists() for output in outputs)

    wait_until(lambda: written() or driver.poll() is not None)
