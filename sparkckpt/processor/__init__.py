"""Stateful Python whose state travels with the data.

Spark's own operators ask the JVM for the state of one key at a time. Here the state of the keys
comes beside their rows, in the same Arrow record batches, and goes back the same way: `wire` is the
exchange, `values` and `statevalues` turn columns into Python objects and back, and the rest are
ways of writing a processor upon it. Workers import this for every query, so a module here imports
what is heavy only when it is used.
"""
