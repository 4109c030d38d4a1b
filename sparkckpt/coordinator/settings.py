"""What of a query's options concerns its coordinator."""

from collections.abc import Mapping
from dataclasses import dataclass

from sparkckpt.conf import OPTIONS
from sparkckpt.coordinator.failures import CheckpointFailureManager

MAX_WAITING = 10


@dataclass(frozen=True)
class CoordinatorSettings:
    """The options of `checkpoint`, and those of the store of completed checkpoints."""

    interval: int = 1
    retained: int = 10
    timeout_ms: int = 600_000
    tolerable_failures: int = CheckpointFailureManager.UNLIMITED
    stop_on_failure: bool = False
    store: str = "files"
    zookeeper_quorum: str = ""
    zookeeper_root: str = "/sparkckpt"
    min_batches_to_retain: int = 100
    """Spark's own: so many batches back it can load state."""

    @classmethod
    def of(cls, options: Mapping[str, str], min_batches_to_retain: int) -> "CoordinatorSettings":
        """From options by short name, as the plugin hands them over; they are validated there."""
        default = cls()
        timeout = options.get("checkpoint.timeout")
        return cls(
            interval=int(options.get("checkpoint.interval", default.interval)),
            retained=int(options.get("checkpoint.retained", default.retained)),
            timeout_ms=default.timeout_ms if timeout is None else int(timeout) * 1000,
            tolerable_failures=int(
                options.get("checkpoint.tolerableFailures", default.tolerable_failures)
            ),
            stop_on_failure=options.get("checkpoint.onFailure", "warn").lower() == "stop",
            store=_text(options, "store"),
            zookeeper_quorum=_text(options, "zookeeper.quorum"),
            zookeeper_root=_text(options, "zookeeper.root"),
            min_batches_to_retain=min_batches_to_retain,
        )

    @property
    def max_waiting(self) -> int:
        """So many committed batches may wait for completion. More than are retained never need to:
        the newer ones would subsume them at once."""
        return min(self.retained, MAX_WAITING)


def _text(options: Mapping[str, str], name: str) -> str:
    (option,) = (option for option in OPTIONS if option.name == name)
    return str(option.value_of(options.get(name, option.default_text)))
