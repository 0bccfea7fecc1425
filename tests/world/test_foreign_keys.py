"""Keys of the store that no worker of the job has written: one line, or the way without shared memory."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
import torch.distributed as dist

from rueda.errors import WorldError
from rueda.world.shared_memory.transport import connect_segment, find_hosts

SECONDS = timedelta(seconds=5)
GARBAGE = b"\xff\x00not what was written"


def store_with(**contents: bytes) -> dist.Store:
    store = dist.HashStore()
    for key, content in contents.items():
        store.set(key, content)
    return store


def test_a_segment_that_cannot_be_read_is_refused_and_the_first_rank_is_told() -> None:
    store = store_with(segment=GARBAGE, agreed=b"no")
    assert connect_segment(store, 1, 2, 4096, SECONDS) is None
    assert store.get("opened/1").decode().startswith("the store of this job, key segment: expected a segment, got b'")


def test_a_decision_that_cannot_be_read_ends_the_worker_in_one_line() -> None:
    """The first rank may have decided for shared memory or against it."""
    elsewhere = json.dumps(["another host", 1, 3, "nonce", ""]).encode()
    with pytest.raises(WorldError, match=r"key agreed: expected yes or no, got b'\\xff.*start the job again$"):
        connect_segment(store_with(segment=elsewhere, agreed=GARBAGE), 1, 2, 4096, SECONDS)


def test_hosts_that_cannot_be_read() -> None:
    with pytest.raises(WorldError, match="key hosts: expected lists of ranks, got b'"):
        find_hosts(store_with(hosts=GARBAGE), 1, 2, SECONDS)
    store = store_with(**{"host/1": GARBAGE})  # a name like another
    assert find_hosts(store, 0, 2, SECONDS) == [[0], [1]]
