"""The machine that figures were taken on, and how busy it was with other things."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class Machine:
    """What the reader of a figure must know of where it was taken."""

    cores: int
    memory_gib: int
    system: str
    python: str
    spark: str
    java: str
    load: float
    """Processes that wanted a core in the minute before: above zero, others shared the cores."""

    @staticmethod
    def here(java: str = "") -> "Machine":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        try:
            spark = version("pyspark")
        except PackageNotFoundError:
            spark = ""
        return Machine(
            os.cpu_count() or 0,
            round(memory / 2**30),
            f"{platform.system()} {platform.machine()}",
            platform.python_version(),
            spark,
            java,
            round(os.getloadavg()[0], 1),
        )

    def __str__(self) -> str:
        software = {"Java": self.java, "Spark": self.spark, "Python": self.python}
        versions = ", ".join(f"{name} {value}" for name, value in software.items() if value)
        return (
            f"{self.cores} cores, {self.memory_gib} GiB, {self.system}, {versions}; "
            f"load {self.load} at the start"
        )
