"""What errors of the clients of object stores mean.

fsspec leaves many of them as the client raises them, and those have no common base. Here they
become errors of the operating system, which is what files fail with elsewhere. The clients need not
be installed: their errors are known by name.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_CLIENTS = frozenset(
    {
        "adlfs",
        "aiobotocore",
        "aiohttp",
        "asyncio",
        "azure",
        "botocore",
        "gcsfs",
        "google",
        "requests",
        "s3fs",
        "urllib3",
    }
)
_UNREACHABLE = frozenset(
    {
        "ClientConnectionError",
        "ConnectionError",
        "HTTPClientError",
        "ServiceRequestError",
        "ServiceResponseError",
        "Timeout",
        "TimeoutError",
        "TransportError",
    }
)
_NO_CREDENTIALS = frozenset(
    {
        "ClientAuthenticationError",
        "CredentialRetrievalError",
        "DefaultCredentialsError",
        "NoAuthTokenError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "RefreshError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
    }
)
_MISSING = frozenset({"ResourceNotFoundError"})


class NoCredentialsError(PermissionError):
    """A client does not know as whom it is to ask."""


@contextmanager
def as_os_errors() -> Iterator[None]:
    """Has an error of a client raised as an OSError; any other error is left as it is."""
    try:
        yield
    except Exception as error:
        translated = _translated(error)
        if translated is None:
            raise
        raise translated from error


def _translated(error: Exception) -> OSError | None:
    """None if it is not a client's, or one that says by its type what it means."""
    kinds = type(error).__mro__
    if kinds[0].__module__.partition(".")[0] not in _CLIENTS:
        return None
    names = {kind.__name__ for kind in kinds}
    text = str(error) or type(error).__name__
    if names & _NO_CREDENTIALS:
        return NoCredentialsError(text)
    if names & _UNREACHABLE:
        return ConnectionError(text)
    if names & _MISSING:
        return FileNotFoundError(text)
    return None if isinstance(error, OSError) else OSError(text)
