"""Key-group state backend, checkpoints and savepoints for Spark Structured Streaming.

The package's front door: `configure` enables the backend on a session builder, `jar_path` names the
jar that a `spark-submit` needs. Importing it must stay cheap: it never imports pyspark or starts a
JVM by itself.
"""

from sparkckpt.jar import jar_path
from sparkckpt.session import configure

__version__ = "0.1.0"

__all__ = ["__version__", "configure", "jar_path"]
