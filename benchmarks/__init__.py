"""Benchmarks: what the backend costs and saves against Spark's own state stores."""
