"""The networks of the built-in tasks, one file each."""

from __future__ import annotations

from rueda.tasks.models.lecture_cnn import lecture_cnn
from rueda.tasks.models.linear import Line
from rueda.tasks.models.pair_encoder import PairEncoder
from rueda.tasks.models.perceptron import TablePerceptron
from rueda.tasks.models.resnet import resnet
from rueda.tasks.models.small_cnn import small_cnn
from rueda.tasks.models.transformer import byte_classifier, decoder
from rueda.tasks.models.vision_transformer import vision_transformer
from rueda.tasks.models.wide_resnet import wide_resnet

__all__ = [
    "Line",
    "PairEncoder",
    "TablePerceptron",
    "byte_classifier",
    "decoder",
    "lecture_cnn",
    "resnet",
    "small_cnn",
    "vision_transformer",
    "wide_resnet",
]
