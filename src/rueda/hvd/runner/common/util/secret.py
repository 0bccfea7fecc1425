"""Keys and digests for messages, as ``horovod.runner.common.util.secret``."""

from __future__ import annotations

import hashlib
import hmac
import secrets

HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
SECRET_LENGTH = 32
DIGEST_LENGTH = 32


def make_secret_key() -> bytes:
    """Return a new random key.

    >>> len(make_secret_key())
    32
    """
    return secrets.token_bytes(SECRET_LENGTH)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """Return the HMAC of a message with SHA-256."""
    return hmac.digest(key, message, hashlib.sha256)


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    """Return whether a digest is that of the message, in a time that does not depend on the digest.

    >>> check_digest(b"key", b"message", compute_digest(b"key", b"message"))
    True
    """
    return hmac.compare_digest(compute_digest(key, message), digest)
