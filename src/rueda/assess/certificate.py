"""Certificates: an assessment that is signed with the teacher's key, so that a changed one is refused.

The signature is the HMAC-SHA256 of the statement as JSON with sorted names. Who has the key can sign, so it stays with
the teacher: a learner who grades the own script gets the same result, without a signature.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path
from typing import Any

from rueda.assess.confinement import FILES
from rueda.errors import AssessError, read_failure
from rueda.files.atomic import plain
from rueda.records.assessment import Assessment, Certificate

_KEY_BYTES = 32


def new_key(file: Path) -> None:
    """Make a teacher's key; an existing file is never replaced."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        got = "a file that exists" if isinstance(error, FileExistsError) else error.strerror
        raise AssessError("--new-key", expected="a new file", got=got, do="name another one") from None
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_hex(_KEY_BYTES) + "\n")
    except OSError as error:  # such as a full disk: no empty key is left
        file.unlink(missing_ok=True)
        raise AssessError("--new-key", expected="a new file", got=error.strerror, do="name another one") from None


def read_key(file: Path) -> bytes:
    """Read a teacher's key."""
    expected, do = f"a key of {2 * _KEY_BYTES} hexadecimal digits", "make one with `rueda assess --new-key FILE`"
    try:
        key = bytes.fromhex(file.read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise AssessError(str(file), expected=expected, got=read_failure(error), do=do) from None
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise AssessError(str(file), expected=expected, got="something else", do=do)
    return key


def certify(found: Assessment, key: bytes) -> Certificate:
    """Sign an assessment.

    Raises:
        AssessError: it has not passed, or nothing kept the script from the grader's files, the key among them.
    """
    if not found.passed:
        raise AssessError(
            "a certificate", expected="a submission that has passed", got=found.summary, do="see why above"
        )
    if not any(one.startswith(FILES) for one in found.isolation):
        do = "grade on Linux 5.13 or later, with Landlock enabled"
        raise AssessError("a certificate", expected="a script that could not read the key", got="no Landlock", do=do)
    statement = plain({
        "learner": found.learner, "script": found.script, "digest": found.digest, "task": found.task,
        "workers": found.workers, "target_accuracy": found.target_accuracy, "patience": found.patience,
        "within": found.within, "points": found.points, "passed": found.passed,
        "accuracies": [round(one.accuracy, 4) for one in found.epochs],
        "seconds": [round(one.seconds, 1) for one in found.epochs],
        "isolation": list(found.isolation), "time": found.environment.get("time", ""),
    })  # fmt: skip
    return Certificate(statement=statement, signature=_signature(statement, key), environment=found.environment)


def is_genuine(certificate: Certificate, key: bytes) -> bool:
    """Return whether a certificate was signed with a key, and its statement is unchanged.

    >>> key, statement = bytes(32), {"learner": "Ada", "passed": True}
    >>> signed = Certificate(statement=statement, signature=_signature(statement, key))
    >>> is_genuine(signed, key), is_genuine(Certificate(statement={}, signature=signed.signature), key)
    (True, False)
    """
    try:
        wanted = _signature(certificate.statement, key)
    except ValueError:  # a number that is none, such as Infinity, which is never signed
        return False
    return hmac.compare_digest(wanted.encode(), certificate.signature.encode(errors="replace"))


def _signature(statement: dict[str, Any], key: bytes) -> str:
    text = json.dumps(statement, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hmac.new(key, b"rueda certificate 1\n" + text.encode(), hashlib.sha256).hexdigest()
