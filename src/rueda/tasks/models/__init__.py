"""The networks of the built-in tasks, one file each."""

from __future__ import annotations

from rueda.tasks.models.lecture_cnn import lecture_cnn
from rueda.tasks.models.linear import Line
from rueda.tasks.models.resnet import resnet
from rueda.tasks.models.small_cnn import small_cnn
from rueda.tasks.models.wide_resnet import wide_resnet

__all__ = ["Line", "lecture_cnn", "resnet", "small_cnn", "wide_resnet"]
