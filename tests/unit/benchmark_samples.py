"""Runs of the backend benchmark as a child process would report them, with chosen figures."""

from benchmarks.jvm import Garbage
from benchmarks.results import Batch, Measured, Restart, Run
from benchmarks.statedir import Written


def run_of(
    contestant: str,
    keys: int,
    changes: int,
    batch_ms: int = 1000,
    *,
    updates_ms: int = 100,
    commit_ms: int = 300,
    gc_ms: int = 500,
    written: int = 1_000_000,
    cold_seconds: float = 4.0,
    batches: int = 50,
    repeat: int = 0,
) -> Run:
    batch = Batch(batch_ms, batch_ms - 50, updates_ms, commit_ms, {})
    measured = Measured(
        [batch] * batches,
        Written({"delta": batches}, {"delta": written}),
        Garbage(["G1 Young Generation"], gc_ms, 7, 10**9),
        42,
        "4.3.0",
        "17",
    )
    restart = Restart(cold_seconds + 1, 1.0, 900, 43)
    return Run(contestant, f"{keys}/{changes}", keys, changes, repeat, measured, restart)
