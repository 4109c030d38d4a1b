"""The root of all errors of sparkckpt."""


class SparkckptError(Exception):
    """Base of all errors that sparkckpt raises on purpose."""
