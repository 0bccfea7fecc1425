from __future__ import annotations

import numpy as np
import pytest

from rueda.data import partition
from rueda.errors import DataError


@pytest.mark.parametrize("num_examples", [1, 2, 7, 1000])
def test_shards_is_a_permutation_that_changes_with_seed_and_epoch(num_examples: int) -> None:
    first = partition.order(num_examples, seed=3, epoch=5)
    assert sorted(first.tolist()) == list(range(num_examples))
    assert np.array_equal(first, partition.order(num_examples, seed=3, epoch=5))
    if num_examples == 1000:
        for seed, epoch in ((3, 6), (4, 5), (5, 3)):
            assert (first == partition.order(num_examples, seed, epoch)).sum() < 20


def test_every_place_of_the_shuffle_is_equally_likely() -> None:
    first_places = [int(partition.order(10, seed=0, epoch=epoch)[0]) for epoch in range(5000)]
    counts = np.bincount(first_places, minlength=10)
    assert ((counts - 500) ** 2 / 500).sum() < 30  # 9 degrees of freedom


def test_random_draws_from_the_whole_set_with_replacement() -> None:
    drawn = partition.order(1000, seed=0, epoch=0, method="random")
    share = len(np.unique(drawn)) / 1000
    assert abs(share - (1 - np.exp(-1))) < 0.04
    mine = [set(drawn[rank::4].tolist()) for rank in range(4)]
    assert all(len({value // 100 for value in each}) == 10 for each in mine), "a worker sees all of the set"
    assert mine[0] & mine[1], "workers may draw the same example"
    assert drawn[0::4].tolist() != drawn[1::4].tolist(), "but from their own random numbers"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_shares_of_all_workers_are_the_global_batch(size: int) -> None:
    shares = [partition.positions_of(48, 24 // size, rank, size) for rank in range(size)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(48, 72))
    assert {len(share) for share in shares} == {24 // size}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 20])
@pytest.mark.parametrize("num_examples", [1, 2, 10, 13, 64])
@pytest.mark.parametrize("local_batch", [1, 4, 100])
def test_evaluation_counts_every_example_exactly_once(size: int, num_examples: int, local_batch: int) -> None:
    weights = np.zeros(num_examples)
    for position in range(0, num_examples, local_batch * size):
        lengths = set()
        for rank in range(size):
            indices, weight = partition.evaluation_share(num_examples, position, local_batch, rank, size)
            np.add.at(weights, indices, weight)
            lengths.add(len(indices))
            assert (weight == 0).sum() <= 1, "at most one example of padding"
        assert len(lengths) == 1, "all workers have the same length"
    assert weights.tolist() == [1.0] * num_examples


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: partition.order(0, 0, 0), "at least 1 example"),
        (lambda: partition.order(5, 0, -1), "0 or more"),
        (lambda: partition.order(5, 0, 0, "sorted"), "shards or random"),
        (lambda: partition.num_batches(5, 2, "keep"), "drop or pad"),
        (lambda: partition.check_worker(2, 2), "from 0 to 1 of 2"),
        (lambda: partition.check_worker(-1, 2), "rank"),
        (lambda: partition.check_worker(0, 0), "rank"),
        (lambda: partition.check_batch(10, 0, 1), "1 or more"),
        (lambda: partition.check_batch(10, 4, 3), "at most the 10 examples"),
        (lambda: partition.check_batch(3, 1, 4), "at most the 3 examples"),
    ],
)
def test_mistakes_are_refused(action: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        action()  # type: ignore[operator]
