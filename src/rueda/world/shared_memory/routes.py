"""Which elements of a chunk a rank reduces and exchanges with other hosts, and the memory from and to which they go.

How a chunk is divided depends on its size, the number of hosts and the ranks of a host alone, so all ranks divide it
alike; see :mod:`rueda.world.shared_memory.host_group`.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rueda.world.shared_memory.operations import Place, part_of

PART_BYTES = 1 << 15
WHOLE_BYTES = 1 << 14
_ROUNDING_BYTES = 64 * 16  # parts begin at multiples of 64 elements, of at most 16 bytes

PARTIAL, RESULT = range(2)
"""kinds of messages: a partial result of one host, and a result of all"""


class HostPlace(NamedTuple):
    """The place of a rank's host among the hosts of a group."""

    host: int
    num_hosts: int


class Part(NamedTuple):
    """A rank's part of a chunk: where it begins and ends, in elements, and whether it is sent whole to all peers.

    >>> Part.of(1000, 4, Place(1, 4), 2)  # too few for more than one part
    Part(low=1000, high=1000, whole=True)
    >>> Part.of(100_000, 4, Place(1, 4), 3), Part.of(100_000, 4, Place(1, 4), 3).shares(3)
    (Part(low=25024, high=50048, whole=False), [(0, 8384), (8384, 16768), (16768, 25024)])
    """

    low: int
    high: int
    whole: bool

    @classmethod
    def of(cls, num_elements: int, itemsize: int, place: Place, num_hosts: int) -> Part:
        """Return the part of a rank.

        Args:
            num_elements: the elements of the chunk.
            itemsize: the bytes of an element.
            place: the place of the rank on its host.
            num_hosts: the number of hosts.
        """
        num_parts = max(1, min(place.size, num_elements * itemsize // PART_BYTES))
        low, high = part_of(num_elements, place.rank, num_parts)
        return cls(low, high, num_hosts == 2 or (high - low) * itemsize <= WHOLE_BYTES)

    def shares(self, num_hosts: int) -> list[tuple[int, int]]:
        """Return where the share of each host begins and ends within the part: the elements that its rank sums."""
        length = self.high - self.low
        return [(0, length) if self.whole else part_of(length, host, num_hosts) for host in range(num_hosts)]


class PartialMemory:
    """This rank's own memory for the partial results of all hosts.

    Args:
        chunk_bytes: the bytes of a chunk.
        size: the ranks of a host.
        num_hosts: the number of hosts.
    """

    def __init__(self, chunk_bytes: int, size: int, num_hosts: int) -> None:
        num_bytes = max(chunk_bytes // size, 2 * PART_BYTES) + _ROUNDING_BYTES
        self.memory = [mmap.mmap(-1, num_bytes) for _ in range(num_hosts)]
        with torch.inference_mode(False):
            self.tensors = [torch.frombuffer(memory, dtype=torch.uint8) for memory in self.memory]


class Route:
    """How a chunk of some size travels.

    Args:
        part: this rank's part of it.
        hosts: the place of this rank's host.
        slots: the slots of this host's ranks.
        first: the bytes of the first slot.
        own: this rank's own memory.
    """

    def __init__(
        self, part: Part, hosts: HostPlace, slots: Sequence[Tensor], first: memoryview, own: PartialMemory
    ) -> None:
        self.low, self.high, whole = part
        dtype = slots[0].dtype
        size = dtype.itemsize
        host, num_hosts = hosts
        others = [other for other in range(num_hosts) if other != host]
        shares = part.shares(num_hosts)
        begin, end = shares[host]

        def mine(memory: memoryview, low: int, high: int) -> memoryview:
            return memory[low * size : high * size]

        with torch.inference_mode(False):
            self.slots = [slot[part.low : part.high] for slot in slots]
            """this rank's part in the slots of its host"""
            whole_partials = [tensor[: (part.high - part.low) * size].view(dtype) for tensor in own.tensors]
            self.partial = whole_partials[host]
            """their partial result"""
            self.partials = [partial[: end - begin] for partial in whole_partials]
            """the partial results of all hosts for this host's share"""
            self.partials[host] = self.partial[begin:end]
            self.total = slots[0][part.low + begin : part.low + end]
            """where their sum goes"""
        self.sent_partials = [
            (other, mine(memoryview(own.memory[host]), *shares[other]))
            for other in others if shares[other][1] > shares[other][0]
        ]  # fmt: skip
        """what is sent to each peer, and so on"""
        result = mine(first, part.low + begin, part.low + end)
        self.sent_results = [(other, result) for other in others if not whole and end > begin]
        self.received_partials = {
            other: mine(memoryview(own.memory[other]), 0, end - begin) for other in others if end > begin
        }
        self.received_results = {
            other: mine(first, part.low + shares[other][0], part.low + shares[other][1])
            for other in others if not whole and shares[other][1] > shares[other][0]
        }  # fmt: skip
