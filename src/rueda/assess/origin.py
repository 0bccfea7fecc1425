"""Where training examples come from: the task's training examples, its validation examples, or elsewhere.

Every example that was trained on has a digest in the journals, which is that of a task's example if nothing has changed
it. What an augmentation or another normalisation has changed is recognised by its likeness, for a sample of examples:
the correlation of the pixels, at every shift by up to four pixels and mirrored or not, with each of the task's
examples. It does not depend on brightness and contrast, and noise, a shift or a covered corner leave most of it. A
changed example is nearly its origin, or its origin is the only example that it is like: images of another source are
like several, or like none.
"""

from __future__ import annotations

import base64
from array import array
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rueda.assess.evaluation import Provenance
from rueda.assess.watch import example_digests
from rueda.data.arrays import Arrays

_SHIFT = 4
_SAME = 0.9  # correlation from which an example is a changed one of the task
_ALIKE, _APART = 0.7, 0.12  # the same if it is also so much more than with any other
_FEWEST = 3  # samples that must be like validation examples before that is believed
_SAMPLES = 48  # that are compared in full
_TRAIN, _VALIDATION, _UNKNOWN = 1, 2, 0


def provenance(notes: list[list[dict[str, Any]]], train: Arrays, validation: Arrays) -> Provenance:
    """Return where the training examples of all workers come from."""
    known = dict.fromkeys(_digests(validation), _VALIDATION) | dict.fromkeys(_digests(train), _TRAIN)
    read = [_read(each) for each in notes]
    every = Counter[int]()
    for each in read:
        every.update(each)
    total = sum(every.values())
    if not total:
        return Provenance()
    exact = Counter[int]()
    for digest, count in every.items():
        exact[known.get(digest, _UNKNOWN)] += count
    fractions = {kind: exact[kind] / total for kind in (_TRAIN, _VALIDATION, _UNKNOWN)}
    if fractions[_UNKNOWN] > 0.01:
        samples = [one for each in notes for one in each if one["kind"] == "sample"]
        unmatched = [_sample(one, train) for one in samples if one["digest"] not in known]
        alike = Counter(_likeness(unmatched[:: max(1, len(unmatched) // _SAMPLES)][:_SAMPLES], train, validation))
        if alike[_VALIDATION] < _FEWEST:
            alike[_UNKNOWN] += alike.pop(_VALIDATION, 0)
        unknown = fractions[_UNKNOWN]
        for kind in (_TRAIN, _VALIDATION):
            part = unknown * alike[kind] / max(1, alike.total())
            fractions[kind] += part
            fractions[_UNKNOWN] -= part
    return Provenance(
        examples=total, train=fractions[_TRAIN], validation=fractions[_VALIDATION],
        unknown=max(0.0, fractions[_UNKNOWN]), shared=_shared(read, len(train)),
    )  # fmt: skip


def _read(notes: list[dict[str, Any]]) -> list[int]:
    found = array("I")
    for one in notes:
        if one["kind"] == "trained":
            found.frombytes(base64.b64decode(one["digests"]))
    return list(found)


def _shared(read: list[list[int]], num_train: int) -> float:
    """Return the part of the first epoch's examples of a worker that the other workers have read as well."""
    share = num_train // max(1, len(read))
    firsts = [set(each[: share // 2]) for each in read]
    parts = [len(mine & other) / max(1, len(mine)) for i, mine in enumerate(firsts) for other in firsts[i + 1 :]]
    return max(parts, default=0.0)


def _digests(data: Arrays) -> list[int]:
    return [one for part in _parts(data) for one in example_digests(data.floats(part))]


def _parts(data: Arrays) -> list[Tensor]:
    return list(torch.split(data.inputs, 1000))


def _sample(note: dict[str, Any], data: Arrays) -> Tensor:
    values = np.frombuffer(base64.b64decode(note["values"]), dtype=np.float16).astype(np.float32)
    return torch.from_numpy(values).reshape(data.inputs.shape[1:])


def _likeness(samples: list[Tensor], train: Arrays, validation: Arrays) -> list[int]:
    """Return for each sample whether it is like a training or a validation example, or like none."""
    if not samples:
        return []
    mine = torch.stack(samples)  # (samples, channels, height, width)
    variants = [
        torch.roll(base, (down, right), (2, 3))
        for base in (mine, mine.flip(3)) for down in range(-_SHIFT, _SHIFT + 1) for right in range(-_SHIFT, _SHIFT + 1)
    ]  # fmt: skip
    inner = slice(_SHIFT, -_SHIFT)
    moved = _standard(torch.cat(variants)[:, :, inner, inner])  # (variants * samples, values)
    likeness = torch.cat(
        [
            (moved @ _standard(part[:, :, inner, inner].float()).T).view(len(variants), len(samples), -1).amax(0)
            for data in (train, validation) for part in _parts(data)
        ],
        dim=1,
    )  # (samples, examples)  # fmt: skip
    best, which = likeness.topk(2, dim=1)
    found = []
    for (first, second), at in zip(best.tolist(), which[:, 0].tolist(), strict=True):
        is_one = first >= _SAME or (first >= _ALIKE and first - second >= _APART)
        found.append((_TRAIN if at < len(train) else _VALIDATION) if is_one else _UNKNOWN)
    return found


def _standard(images: Tensor) -> Tensor:
    flat = images.flatten(1)
    flat = flat - flat.mean(1, keepdim=True)
    return torch.nn.functional.normalize(flat, dim=1)
