"""A Slurm cluster for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm_cluster import Slurm, cluster


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Start a cluster of two nodes; skip the test where there can be none."""
    running = cluster(tmp_path_factory.mktemp("slurm"))
    try:
        one = running.__enter__()
    except RuntimeError as error:
        pytest.skip(str(error))
    try:
        yield one
    finally:
        running.__exit__(None, None, None)
