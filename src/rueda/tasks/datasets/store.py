"""Find a data set: in a given folder, in ``RUEDA_DATA``, in the system, in the cache, or at the publisher.

======================  ===============================================================================
``directory``           the folder of ``--from DIR``: the folder of the set, or one that contains it
``RUEDA_DATA``          one or more such folders, separated as in ``PATH``
the system              Debian's ``/usr/share/datasets/fashion-mnist``
the cache               ``RUEDA_CACHE``, else ``rueda`` in ``XDG_CACHE_HOME``, else ``~/.cache/rueda``
the publisher           downloaded into the cache, by local rank 0 of each machine only
======================  ===============================================================================

The first folder that holds all files is used. Every file is compared with its published checksum each time it is read
(0.02 s for 30 MB). The cache holds the decoded files, which are written atomically.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rueda.errors import DataError, RunError
from rueda.files.atomic import write_atomically
from rueda.files.cache import cache_folder
from rueda.tasks.datasets.published import Progress, Published


@dataclass(frozen=True, kw_only=True)
class DataFolder:
    """A folder that may hold a data set."""

    source: str
    """directory, RUEDA_DATA, system or cache"""
    folder: Path


def candidates(published: Published, directory: Path | str | None = None) -> Iterator[DataFolder]:
    """Yield the folders that may hold the set, in order of preference; a given directory excludes all others."""
    if directory is not None:
        yield from _within("directory", Path(directory), published)
        return
    for entry in os.environ.get("RUEDA_DATA", "").split(os.pathsep):
        if entry:
            yield from _within("RUEDA_DATA", Path(entry), published)
    for folder in published.system_folders:
        yield DataFolder(source="system", folder=Path(folder))
    yield DataFolder(source="cache", folder=cache_folder() / published.name)


def locate(published: Published, directory: Path | str | None = None) -> DataFolder | None:
    """Return the first folder that holds all files, which are not read yet; None if there is none.

    Raises:
        DataError: a directory was given and does not hold the set.
    """
    found = next((one for one in candidates(published, directory) if not published.missing(one.folder)), None)
    if found is None and directory is not None:
        best = min((published.missing(one.folder) for one in candidates(published, directory)), key=len)
        raise DataError(
            str(directory),
            expected=f"the files of {published.name}",
            got="no such folder" if not Path(directory).is_dir() else f"none of {', '.join(best)}",
            do="name the folder that holds them",
        )
    return found


def find_or_fetch(published: Published, directory: Path | str | None = None, *, fetch: bool = True) -> Path:
    """Return a folder that holds the set; if there is none, download the set into the cache.

    Args:
        published: the data set.
        directory: the only folder to look in.
        fetch: whether this process may download.
    """
    found = locate(published, directory)
    if found is not None:
        return found.folder
    if not fetch:
        raise DataError(f"{published.name} is missing: local rank 0 of this machine could not download it")
    return _download(published)


def install(published: Published, directory: Path | str | None = None, progress: Progress | None = None) -> Path:
    """Return a folder with the verified set; see :func:`rueda.tasks.datasets.get`."""
    found = locate(published, directory)
    if found is None:
        return _download(published, progress)
    copy_to = cache_folder() / published.name if found.source == "directory" else None
    try:
        verify_all(published, found.folder, progress, copy_to=copy_to)
    except DataError:
        if found.source != "cache":  # only the cache is downloaded again
            raise
        return _download(published, progress)
    return copy_to or found.folder


def verify_all(
    published: Published, folder: Path, progress: Progress | None = None, *, copy_to: Path | None = None
) -> None:
    """Read every file of the set and compare its checksum.

    Args:
        published: the data set.
        folder: the folder that holds it.
        progress: is called after each file.
        copy_to: write the decoded files into this folder.
    """
    for number, file in enumerate(published.checksums, 1):
        plain = published.read(folder, file)
        if copy_to is not None:
            write_to_cache(published, copy_to, file, plain, str(folder))
        if progress is not None:
            progress(published.name, number, len(published.checksums))


def write_to_cache(published: Published, folder: Path, file: str, plain: bytes, source: str) -> None:
    """Verify a decoded file and write it into the cache.

    Args:
        published: the data set.
        folder: the folder in the cache.
        file: the plain name of the file.
        plain: the decoded bytes.
        source: where the bytes come from, for messages.

    Raises:
        DataError: the checksum is wrong, or the file cannot be written.
    """
    published.verify(file, plain, source)
    make_folder(folder)
    try:
        write_atomically(folder / file, plain)
    except RunError as error:
        raise DataError(f"{error} (or set RUEDA_CACHE)") from None


def make_folder(folder: Path) -> None:
    """Create the folder of a data set in the cache."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot create {folder}: {error.strerror}; set RUEDA_CACHE to a folder that you may write"
        ) from None


def _download(published: Published, progress: Progress | None = None) -> Path:
    """Download the set into the cache; return its folder, or raise DataError if a file is missing afterwards."""
    folder = cache_folder() / published.name
    published.download(folder, progress)
    missing = published.missing(folder)
    if missing:
        expected, do = f"all files of {published.name}", "try again, or fetch them elsewhere and use --from DIR"
        raise DataError(published.addresses[0], expected=expected, got=f"none of {', '.join(missing)}", do=do)
    return folder


def _within(source: str, base: Path, published: Published) -> Iterator[DataFolder]:
    for folder in (base, *(base / name for name in published.folders)):
        yield DataFolder(source=source, folder=folder)
