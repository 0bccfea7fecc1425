"""Where data sets come from: a folder that is named, ``RUEDA_DATA``, the system, the cache, or the publisher.

======================  ===============================================================================
``directory``           what ``--from DIR`` names: the set's folder, or a folder that holds it
``RUEDA_DATA``          one or more such folders, separated as in ``PATH``
the system              Debian's ``/usr/share/datasets/fashion-mnist``
the cache               ``RUEDA_CACHE``, else ``rueda`` in ``XDG_CACHE_HOME``, else ``~/.cache/rueda``
the publisher           into the cache; by the first worker of each machine only
======================  ===============================================================================

The first that holds all files wins. Every file is compared with its published checksum each time it is read (0.02 s
for 30 MB). The cache holds the decoded files, each written whole or not at all.
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
class Place:
    """A folder that may hold a data set, and what kind of place it is."""

    kind: str  # directory, RUEDA_DATA, system, cache
    folder: Path


def places(published: Published, directory: Path | None = None) -> Iterator[Place]:
    """List the folders that may hold the set, best first; a named directory is the only one."""
    if directory is not None:
        yield from _within("directory", directory, published)
        return
    for entry in os.environ.get("RUEDA_DATA", "").split(os.pathsep):
        if entry:
            yield from _within("RUEDA_DATA", Path(entry), published)
    for folder in published.places:
        yield Place(kind="system", folder=Path(folder))
    yield Place(kind="cache", folder=cache_folder() / published.name)


def locate(published: Published, directory: Path | None = None) -> Place | None:
    """Find the first place that holds all files, unread; None where there is none.

    Raises:
        DataError: a directory was named and does not hold the set.
    """
    found = next((place for place in places(published, directory) if not published.missing(place.folder)), None)
    if found is None and directory is not None:
        best = min((published.missing(place.folder) for place in places(published, directory)), key=len)
        raise DataError(
            str(directory),
            expected=f"the files of {published.name}",
            got="no such folder" if not directory.is_dir() else f"none of {', '.join(best)}",
            do="name the folder that holds them",
        )
    return found


def find_or_fetch(published: Published, directory: Path | None = None, *, fetch: bool = True) -> Path:
    """Give a folder that holds the set; where nobody has it, download it into the cache."""
    found = locate(published, directory)
    if found is not None:
        return found.folder
    folder = cache_folder() / published.name
    if not fetch:
        raise DataError(f"{published.name} is not there: the first worker of this machine could not fetch it")
    published.download(folder, None)
    return _complete(published, folder)


def install(published: Published, directory: Path | None = None, progress: Progress | None = None) -> Path:
    """Have the set, whole and verified: from where it lies, or from ``directory`` or the publisher into the cache."""
    found = locate(published, directory)
    folder = cache_folder() / published.name
    if found is not None and found.kind != "directory":
        try:
            verify_all(published, found.folder, progress)
            return found.folder
        except DataError:
            if found.kind != "cache":
                raise  # not ours to mend
            found = None
    if found is None:
        published.download(folder, progress)
        return _complete(published, folder)
    for number, file in enumerate(published.checksums, 1):
        keep(published, folder, file, published.read(found.folder, file), str(found.folder))
        if progress is not None:
            progress(published.name, number, len(published.checksums))
    return folder


def verify_all(published: Published, folder: Path, progress: Progress | None = None) -> None:
    """Read every file and compare its checksum."""
    for number, file in enumerate(published.checksums, 1):
        published.read(folder, file)
        if progress is not None:
            progress(published.name, number, len(published.checksums))


def keep(published: Published, folder: Path, file: str, plain: bytes, source: str) -> None:
    """Write one decoded file into the cache, if its checksum is right."""
    published.verify(file, plain, source)
    make_folder(folder)
    try:
        write_atomically(folder / file, plain)
    except RunError as error:
        raise DataError(f"{error} (or set RUEDA_CACHE)") from None


def make_folder(folder: Path) -> None:
    """Make the cache's folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot make {folder}: {error.strerror}; set RUEDA_CACHE to a folder that you may write"
        ) from None


def _complete(published: Published, folder: Path) -> Path:
    missing = published.missing(folder)
    if missing:
        raise DataError(
            published.addresses[0],
            expected=f"all files of {published.name}",
            got=f"none of {', '.join(missing)}",
            do="try again, or fetch them elsewhere and use --from DIR",
        )
    return folder


def _within(kind: str, base: Path, published: Published) -> Iterator[Place]:
    for folder in (base, *(base / name for name in published.folders)):
        yield Place(kind=kind, folder=folder)
