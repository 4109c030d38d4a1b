"""Hatch build hook: puts the shim's jars into the wheel, compiled by `jvm-shim/build.py`.

It builds for every Spark that SPARKCKPT_SPARK_HOMES names, else for the pyspark of the environment
that the wheel is built for, and asks for one as a build requirement only where none is in reach. It
must never pack a jar it has not just checked against the sources.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def _load_builder(root: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "sparkckpt_jvm_build", Path(root) / "jvm-shim" / "build.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class JarBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return [] if _load_builder(self.root).find_spark_homes() else [self._pyspark_requirement()]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        builder = _load_builder(self.root)
        for home in builder.find_spark_homes():
            jar = builder.build_jar(home)
            build_data["force_include"][str(jar)] = f"sparkckpt/jars/{jar.name}"
        if not build_data["force_include"]:
            raise builder.BuildError(
                "sparkckpt's jar is compiled against pyspark, and none is installed here: "
                f"install {self._pyspark_requirement()} first."
            )

    def _pyspark_requirement(self) -> str:
        requirements = self.metadata.core.dependencies
        return next(text for text in requirements if text.startswith("pyspark"))
