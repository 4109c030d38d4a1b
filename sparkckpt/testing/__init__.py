"""Runs processors in memory, without Spark or a JVM, for the unit tests of those who write them.

`ProcessorTester` plays the part of the operator: it keeps state, timers and timeouts, and exchanges
record batches with the very code that runs in Spark's Python workers.
"""

from sparkckpt.testing.tester import ProcessorTester, redistribute

__all__ = ["ProcessorTester", "redistribute"]
