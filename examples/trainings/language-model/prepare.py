"""Write a small corpus of generated sentences as tokens: train.bin and val.bin, 16 bits each."""

import numpy as np

rng = np.random.default_rng(0)
nouns = ["the cat", "the dog", "a bird", "my friend", "the wheel", "a dancer", "the rain", "the sea"]
verbs = ["sees", "hears", "follows", "finds", "forgets", "moves"]
ends = ["in the morning", "at night", "by the river", "once more", "without a word"]
sentences = [
    f"{nouns[rng.integers(8)]} {verbs[rng.integers(6)]} {nouns[rng.integers(8)]} {ends[rng.integers(5)]}.\n"
    for _ in range(2000)
]
tokens = np.frombuffer("".join(sentences).encode("ascii"), dtype=np.uint8).astype(np.uint16)
split = int(0.9 * len(tokens))
tokens[:split].tofile("train.bin")
tokens[split:].tofile("val.bin")
print(f"{split:,} tokens in train.bin, {len(tokens) - split:,} in val.bin")
