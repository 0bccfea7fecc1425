"""Built-in tasks on text: a language model, and a classifier of texts of different lengths."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from rueda.data import Arrays
from rueda.records import Recipe
from rueda.tasks import metrics, models
from rueda.tasks.datasets import text
from rueda.tasks.step import Losses
from rueda.tasks.task import Task

CONTEXT = 64
"""bytes in a window of the language model"""


def predict_next(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Losses:
    """Compute the cross-entropy of each next token, [B, T], from tokens [B, T] and the tokens after them [B, T]."""
    tokens, targets = batch
    logits = model(tokens)  # [B, T, vocabulary]
    # Flattened, the logits of a token lie side by side; [B, vocabulary, T] makes the backward pass slower on a CPU.
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return Losses(losses.view_as(targets), None, logits)


def text_transformer(file: str | None = None) -> Task:
    """Return a decoder-only transformer that predicts the next byte of generated text, or of a text file.

    ``rueda train text-transformer`` trains on 400,000 bytes of generated text.
    ``rueda train text-transformer:book.txt`` trains on the first nine tenths of a file, and tests on the rest.
    """

    def windows(split: str) -> Arrays:
        found = text.generated_text(split) if file is None else text.file_text(file, split)
        return text.text_windows(found, CONTEXT)

    # AdamW with betas (0.9, 0.95), weight decay 0.1, clipping at 1, warm-up and cosine decay to a tenth of the rate are
    # the settings of GPT-3 (Brown et al. 2020, arXiv:2005.14165, appendix B).
    recipe = Recipe(
        batch=16, optimizer="adamw", rate=8e-3, betas=(0.9, 0.95), weight_decay=0.1, clip=1.0, epochs=6,
        schedule="cosine", final_rate=0.1, warmup_epochs=0.5, warmup="from-zero",
    )  # fmt: skip
    return Task(
        name="text-transformer", model=models.decoder, train=partial(windows, "train"), test=partial(windows, "test"),
        step=predict_next, metrics=(metrics.perplexity(),), unit="tokens", recipe=recipe,
    )  # fmt: skip


class LabelledTexts(Dataset[tuple[Tensor, int]]):
    """Texts as tensors of bytes of different lengths, with their labels."""

    def __init__(self, examples: list[tuple[bytes, int]]) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        characters, label = self._examples[index]
        return torch.from_numpy(np.frombuffer(characters, dtype=np.uint8).astype(np.int64)), label


def pad_texts(examples: list[tuple[Tensor, int]]) -> tuple[dict[str, Tensor], Tensor]:
    """Return tokens [B, longest] padded with 0 and their lengths [B], by the names that the model takes, and labels."""
    texts, labels = zip(*examples, strict=True)
    tokens = nn.utils.rnn.pad_sequence(list(texts), batch_first=True)
    lengths = torch.tensor([len(each) for each in texts])
    return {"tokens": tokens, "lengths": lengths}, torch.tensor(labels)


def bytes_classifier() -> Task:
    """Return a transformer that predicts the topic of generated texts of 40 to 128 bytes."""

    def data(split: str) -> Any:
        return LabelledTexts(text.labelled_texts(split))

    recipe = Recipe(
        batch=32, optimizer="adamw", rate=5e-3, weight_decay=0.1, clip=1.0, epochs=6, schedule="cosine",
        warmup_epochs=0.5, warmup="from-zero",
    )  # fmt: skip
    return Task(
        name="bytes-classifier", model=partial(models.byte_classifier, num_classes=text.NUM_CLASSES),
        train=partial(data, "train"), test=partial(data, "test"), collate=pad_texts, unit="texts", recipe=recipe,
    )  # fmt: skip
