"""Files on object storage (S3, Google Cloud Storage, Azure, any other that ``fsspec`` knows), for checkpoints.

A URL such as ``s3://bucket/folder`` names the folder. :class:`RemotePath` has the few methods of :class:`pathlib.Path`
that checkpoints need. An object appears under its name when all of it was sent, so a process that is killed in the
middle leaves nothing; elsewhere (``sftp://``) a temporary file is renamed. Object storage has no locks: nothing
prevents two programs from writing the same folder.
"""

from __future__ import annotations

import io
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from rueda.errors import MissingExtra, RunError

_URL = re.compile(r"[a-z][a-z0-9+.-]*://.", re.IGNORECASE)
_HALF_A_URL = re.compile(
    r"[a-z][a-z0-9+.-]+:/{1,2}$|(s3a?|gc?s|az|abfs):/(?!/.)|(s3a?|gc?s|az|abfs):///", re.IGNORECASE
)
_WHOLE = ("s3", "s3a", "gs", "gcs", "abfs", "az", "memory")
"""kinds of storage on which an object is either there as a whole or not at all"""


class _Stat(NamedTuple):
    """What is known of an object, by the names that :func:`os.stat` uses."""

    st_mode: int
    st_mtime_ns: int
    st_size: int


class RemotePath:
    """A folder or a file on object storage.

    >>> folder = RemotePath("memory://bucket/checkpoints")
    >>> str(folder / "step.pt"), (folder / "step.pt").exists(), list(folder.glob("*.pt"))
    ('memory://bucket/checkpoints/step.pt', False, [])

    Args:
        url: where it is.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self._url.rsplit("/", 1)[1]

    @property
    def parent(self) -> RemotePath:
        """The folder of this file."""
        return RemotePath(self._url.rsplit("/", 1)[0])

    def with_name(self, name: str) -> RemotePath:
        """Return another file of the same folder."""
        return self.parent / name

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self._url}/{name}")

    def __str__(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"RemotePath({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)

    def __lt__(self, other: RemotePath) -> bool:
        return self._url < other._url

    def exists(self) -> bool:
        """Return whether there is such an object."""
        with self._told() as (files, path):
            return bool(files.exists(path))

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Iterate over the files of this folder whose names match."""
        found: list[dict[str, Any]] = []
        with self._told() as (files, path), suppress(FileNotFoundError):
            files.invalidate_cache()  # others, and earlier processes, write the same folder
            found = files.ls(path, detail=True)
        for one in found:
            name = str(one["name"]).rstrip("/").rsplit("/", 1)[-1]
            if one.get("type") == "file" and fnmatchcase(name, pattern):
                yield self / name

    def stat(self) -> _Stat:
        """Return the kind, the time of the last change and the size."""
        with self._told(missing_is_told=False) as (files, path):
            about = files.info(path)
        changed = about.get("LastModified") or about.get("mtime") or about.get("created") or about.get("last_modified")
        seconds = changed.timestamp() if hasattr(changed, "timestamp") else float(changed or 0)
        mode = stat.S_IFREG if about.get("type") == "file" else stat.S_IFDIR
        return _Stat(mode, int(seconds * 1e9), int(about.get("size") or 0))

    def read_bytes(self) -> bytes:
        """Read the whole object."""
        with self._told(missing_is_told=False) as (files, path):
            return bytes(files.cat_file(path))

    def write_bytes(self, content: bytes | memoryview) -> int:
        """Write the object as a whole: others see all of it or nothing."""
        with self._told() as (files, path):
            if self._url.split("://", 1)[0].lower() in _WHOLE:
                files.pipe_file(path, bytes(content))
            else:
                files.makedirs(files._parent(path), exist_ok=True)
                files.pipe_file(f"{path}.part", bytes(content))
                files.mv(f"{path}.part", path)
        return len(content)

    def write_named(self, write: Callable[[BinaryIO], str]) -> RemotePath:
        """Write a file of this folder whose name, which ``write`` returns, depends on its contents."""
        buffer = io.BytesIO()
        file = self / write(buffer)
        file.write_bytes(buffer.getbuffer())
        return file

    def copy_to(self, name: str) -> None:
        """Copy this file to another name in the same folder."""
        with self.with_name(name)._told() as (files, path):
            files.copy(self._path(files), path)

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object."""
        with self._told() as (files, path):
            try:
                files.rm_file(path)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def _path(self, files: Any) -> str:
        return str(files._strip_protocol(self._url))

    @contextmanager
    def _told(self, *, missing_is_told: bool = True) -> Iterator[tuple[Any, str]]:
        """Open the storage; its errors, of which each library has its own, become one line.

        Args:
            missing_is_told: whether a missing object is an error for the user, too; otherwise it is raised as it is.
        """
        try:
            files = _storage(self._url)
            yield files, self._path(files)
        except RunError:
            raise
        except FileNotFoundError as error:
            if not missing_is_told:
                raise
            raise RunError(f"cannot reach {self._url}: no such bucket or folder ({_line(error)}); create it") from None
        except (ImportError, MissingExtra):
            raise
        except Exception as error:
            raise RunError(
                f"cannot reach {self._url}: {_line(error)}; check the address, the credentials and the network"
            ) from None


AnyPath = Path | RemotePath
"""a path on this machine or on object storage"""


def any_path(text: str | Path | RemotePath) -> AnyPath:
    """Return the path that a user has named: a URL on object storage, or a path on this machine.

    >>> any_path("s3://bucket/run"), any_path("runs/one").name
    (RemotePath('s3://bucket/run'), 'one')

    Raises:
        RunError: a URL lacks its bucket, as ``s3://$BUCKET`` does where the variable is not set. As a path it would be
            a folder of this machine, whose checkpoints are lost with the machine.
    """
    if isinstance(text, RemotePath):
        return text
    if isinstance(text, str) and _HALF_A_URL.match(text):
        raise RunError(f"{text}: expected a URL with its bucket, such as s3://bucket/folder; correct it")
    return RemotePath(str(text)) if isinstance(text, str) and _URL.match(text) else Path(text)


def check_outlasts_process(url: str | None) -> None:
    """Refuse a storage that ends with the process, where another process is to find what was written.

    >>> check_outlasts_process("s3://bucket/run")

    Raises:
        RunError: it is fsspec's ``memory://``.
    """
    if url is not None and url.lower().startswith("memory:"):
        raise RunError(
            f"{url}: the memory of a process ends with it, and with it every checkpoint; give a folder, or a URL such "
            "as s3://bucket/folder"
        )


def _storage(url: str) -> Any:
    try:
        import fsspec
    except ImportError:
        raise MissingExtra("fsspec", "remote") from None
    try:
        return fsspec.filesystem(url.split("://", 1)[0].lower())
    except ImportError as error:
        raise MissingExtra(str(error).removeprefix("Install ").split()[0], "remote") from None
    except ValueError as error:
        raise RunError(f"{url}: {_line(error)}; give a path, or a URL such as s3://bucket/folder") from None


def _line(error: Exception) -> str:
    return " ".join(f"{error or type(error).__name__}".split())
