"""Data loading: the partition of examples among workers, loaders of any data, augmentation, sources of examples."""

from __future__ import annotations

from rueda.data.arrays import Arrays
from rueda.data.augment import Augmentation, Cutout, HorizontalFlip, RandomCrop
from rueda.data.dataset_loader import DatasetLoader
from rueda.data.evaluation import EvalLoader
from rueda.data.image_folder import ImageFolder
from rueda.data.loader import Loader
from rueda.data.sampler import PartitionSampler
from rueda.data.shared_loader import SharedLoader
from rueda.data.tar_files import TarFiles
from rueda.data.token_file import TokenFile

__all__ = [
    "Arrays",
    "Augmentation",
    "Cutout",
    "DatasetLoader",
    "EvalLoader",
    "HorizontalFlip",
    "ImageFolder",
    "Loader",
    "PartitionSampler",
    "RandomCrop",
    "SharedLoader",
    "TarFiles",
    "TokenFile",
]
