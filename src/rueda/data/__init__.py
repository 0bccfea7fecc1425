"""Data loading: the partition of examples among workers, loaders of whole batches, and augmentation."""

from __future__ import annotations

from rueda.data.arrays import Arrays
from rueda.data.augment import Augmentation, Cutout, HorizontalFlip, RandomCrop
from rueda.data.dataset_loader import DatasetLoader
from rueda.data.evaluation import EvalLoader
from rueda.data.loader import Loader
from rueda.data.sampler import PartitionSampler

__all__ = [
    "Arrays",
    "Augmentation",
    "Cutout",
    "DatasetLoader",
    "EvalLoader",
    "HorizontalFlip",
    "Loader",
    "PartitionSampler",
    "RandomCrop",
]
