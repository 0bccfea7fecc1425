"""Generated text for language models, of any size, and text files of the user's own, both as windows of bytes.

The text is made of invented words and has structure at several distances, so that a model improves for some time:

- **spelling**: a lexicon of invented nouns, verbs and adjectives made of syllables;
- **frequency**: within a document's topic, word number i has about the probability of Zipf's law;
- **agreement**: a plural noun ends in *s*, and then its verb does not; a singular one the other way round;
- **memory**: each document has a few subjects that return in sentence after sentence.

Document number i depends only on (seed, split, i), so that a larger text begins with the documents of a smaller one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rueda.data.arrays import Arrays
from rueda.data.counter import draws, key_of, uniform
from rueda.errors import DataError, read_failure
from rueda.tasks.datasets.published import check_split

NUM_TOPICS = 16
"""the topics of documents"""
NUM_CLASSES = 8
"""every second topic, the classes of labelled texts"""
_SIZES = {"train": 400_000, "test": 40_000}
_TEXT, _LABELLED = 0, 1  # separate streams of documents
_NOUNS, _VERBS, _ADJECTIVES = range(3)
_COUNTS = (480, 240, 160)
_ONSETS = (
    "b",
    "br",
    "d",
    "f",
    "fl",
    "g",
    "gr",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "w",
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
_CODAS = ("", "", "n", "r", "l", "nd", "m", "ck", "t")
_PREPOSITIONS = ("of", "near", "with", "under", "before", "without")


class _Draws:
    """The random numbers of one document, drawn in order."""

    def __init__(self, *numbers: int) -> None:
        self._key, self._count = key_of(*numbers), 0
        self._drawn: list[float] = []

    def __call__(self) -> float:
        """Return the next number in [0, 1)."""
        if not self._drawn:
            counters = np.arange(self._count, self._count + 256)
            self._drawn, self._count = uniform(draws(self._key, counters)).tolist()[::-1], self._count + 256
        return self._drawn.pop()

    def choose(self, count: int) -> int:
        """Return a number below ``count``."""
        return int(self() * count)


@lru_cache(maxsize=1)
def _lexicon() -> tuple[tuple[str, ...], ...]:
    """Return the invented nouns, verbs and adjectives; every word is different."""
    drawn, seen = _Draws(20_170_612), set[str]()
    kinds = []
    for count in _COUNTS:
        words: list[str] = []
        while len(words) < count:
            parts = [
                _ONSETS[drawn.choose(len(_ONSETS))]
                + _VOWELS[drawn.choose(len(_VOWELS))]
                + _CODAS[drawn.choose(len(_CODAS))]
                for _ in range(1 + drawn.choose(3))
            ]
            word = "".join(parts)
            if 3 <= len(word) <= 10 and word not in seen and not word.endswith("s"):
                seen.add(word)
                words.append(word)
        kinds.append(tuple(words))
    return tuple(kinds)


def _word(kind: int, topic: int, drawn: _Draws) -> str:
    """Return a word of a kind, most often one that is frequent in the topic."""
    words = _lexicon()[kind]
    rank = int(len(words) * drawn() ** 3)  # the density of rank r falls as r^(-2/3)
    return words[(rank + topic * len(words) // NUM_TOPICS) % len(words)]


def document(seed: int, split: str, number: int, topic: int | None = None, stream: int = _TEXT) -> str:
    """Write one document: a line of 4 to 11 sentences, about 300 characters.

    >>> document(0, "train", 0)[:60]
    'the munetnou gaitron keats the weanain. the hounds brounvind'
    """
    drawn = _Draws(seed, stream, 0 if split == "train" else 1, number)
    topic = drawn.choose(NUM_TOPICS) if topic is None else topic
    subjects = [_word(_NOUNS, topic, drawn) for _ in range(3)]
    sentences = []
    for _ in range(4 + drawn.choose(8)):
        plural = drawn() < 0.4
        subject = subjects[drawn.choose(3)] if drawn() < 0.7 else _word(_NOUNS, topic, drawn)
        verb = _word(_VERBS, topic, drawn)
        sentence = [_noun(subject, plural, topic, drawn), verb if plural else verb + "s"]
        if drawn() < 0.8:
            sentence.append(_noun(_word(_NOUNS, topic, drawn), drawn() < 0.4, topic, drawn))
        if drawn() < 0.4:
            sentence.append(_PREPOSITIONS[drawn.choose(len(_PREPOSITIONS))])
            sentence.append(_noun(subjects[drawn.choose(3)], drawn() < 0.4, topic, drawn))
        sentences.append(" ".join(sentence) + ".")
    return " ".join(sentences)


def _noun(word: str, plural: bool, topic: int, drawn: _Draws) -> str:
    article = "the" if plural or drawn() < 0.5 else "a"
    adjective = _word(_ADJECTIVES, topic, drawn) + " " if drawn() < 0.35 else ""
    return f"{article} {adjective}{word}{'s' * plural}"


def generated_text(split: str = "train", *, num_bytes: int | None = None, seed: int = 0) -> NDArray[np.uint8]:
    """Return generated text as bytes: documents, one a line.

    Args:
        split: ``train`` or ``test``, which hold different documents.
        num_bytes: length of the text; by default 400,000 bytes for training and 40,000 for testing.
        seed: seed of all random numbers.

    >>> bytes(generated_text("train", num_bytes=32))
    b'the munetnou gaitron keats the w'
    """
    check_split("text", split)
    wanted = _SIZES[split] if num_bytes is None else num_bytes
    if wanted < 1:
        raise DataError("text", expected="1 byte or more", got=wanted, do="ask for more")

    def documents() -> Iterator[bytes]:
        length = number = 0
        while length < wanted:
            text = document(seed, split, number).encode() + b"\n"
            yield text
            length, number = length + len(text), number + 1

    return np.frombuffer(b"".join(documents())[:wanted], dtype=np.uint8)


def text_windows(text: NDArray[np.uint8], context: int) -> Arrays:
    """Cut a text into windows: inputs [N, context] and, one position later, targets [N, context].

    Every byte but the first is the target of one window; what is left at the end is not used.

    >>> windows = text_windows(np.frombuffer(b"abcdefg", dtype=np.uint8), context=3)
    >>> windows.inputs.tolist(), windows.targets.tolist()
    ([[97, 98, 99], [100, 101, 102]], [[98, 99, 100], [101, 102, 103]])
    """
    count = (len(text) - 1) // context
    if count < 1:
        got, do = f"{len(text)} bytes", "give more text, or a shorter context"
        raise DataError("text", expected=f"more than context = {context} bytes", got=got, do=do)
    tokens = torch.from_numpy(text[: count * context + 1].astype(np.int64))
    return Arrays(tokens[:-1].view(count, context), tokens[1:].view(count, context))


def file_text(file: Path | str, split: str = "train") -> NDArray[np.uint8]:
    """Read a text file as bytes: the first nine tenths for training, the last tenth for testing.

    Raises:
        DataError: the file cannot be read, or is too short.
    """
    check_split("text", split)
    try:
        text = np.fromfile(file, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{file}", expected="a text file", got=read_failure(error), do="check the path") from None
    border = len(text) * 9 // 10
    return text[:border] if split == "train" else text[border:]


def labelled_texts(split: str = "train", *, num_examples: int | None = None, seed: int = 0) -> list[tuple[bytes, int]]:
    """Return texts of different lengths (40 to 128 bytes) with their topics, for a classifier of byte sequences.

    >>> [(len(text), label) for text, label in labelled_texts("train", num_examples=3)]
    [(114, 6), (103, 2), (63, 0)]
    """
    check_split("text", split)
    wanted = {"train": 6_000, "test": 1_000}[split] if num_examples is None else num_examples
    examples = []
    for number in range(wanted):
        drawn = _Draws(seed, _LABELLED, 2 if split == "train" else 3, number)
        label, length = drawn.choose(NUM_CLASSES), 40 + drawn.choose(89)
        text = document(seed, split, number, label * (NUM_TOPICS // NUM_CLASSES), _LABELLED).encode()
        examples.append((text[:length], label))
    return examples
