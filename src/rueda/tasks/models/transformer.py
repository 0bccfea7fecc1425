"""Transformers (Vaswani et al. 2017, arXiv:1706.03762) with pre-normalisation, as GPT-2 has it (Radford et al. 2019).

A block adds two corrections to its input, each computed from the normalised input::

    x = x + attention(norm(x))        x = x + mlp(norm(x))

so that the path from the last layer to the first is the identity. The blocks serve a decoder-only language model
(:func:`decoder`), a classifier of sequences of bytes (:func:`byte_classifier`) and a vision transformer
(:mod:`rueda.tasks.models.vision_transformer`). Weights are drawn from N(0, 0.02^2), those that write into the residual
path from N(0, 0.02^2 / (2 layers)), so that its variance does not grow with the depth.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rueda.errors import TaskError

NUM_BYTES = 256
"""the vocabulary of a model that reads bytes"""


class Attention(nn.Module):
    """Multi-head self-attention over a sequence, [B, T, width] -> [B, T, width]."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise TaskError("heads", expected=f"a divisor of width = {width}", got=heads, do="choose another number")
        self.heads, self.causal = heads, causal
        self.head_width = width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend to all positions, only to earlier ones if causal; ``mask`` [B, T] is False for padding."""
        batch, length, _ = inputs.shape
        # All heads, or with tensor parallelism those of this worker.
        heads = self.qkv(inputs).view(batch, length, 3, -1, self.head_width).permute(2, 0, 3, 1, 4)
        seen = None if mask is None else mask[:, None, None, :]
        query, key, value = heads.unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, is_causal=self.causal)
        joined: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return joined


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a layer norm and beside a shortcut."""

    def __init__(self, width: int, heads: int, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, causal=causal)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, T, width] to the same shape."""
        hidden = inputs + self.dropout(self.attention(self.norm1(inputs), mask))
        outputs: Tensor = hidden + self.dropout(self.mlp(self.norm2(hidden)))
        return outputs


def initialise(model: nn.Module, num_layers: int) -> None:
    """Draw the weights of a transformer as the description of the module says."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            writes = name.endswith(("attention.out", "mlp.2"))
            nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * num_layers) if writes else 0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def embed_tokens(tokens: Tensor, embedding: nn.Embedding, positions: nn.Embedding) -> Tensor:
    """Add the embeddings of tokens [B, T] and of their positions, [B, T, width]; refuse too long a sequence."""
    context = positions.num_embeddings
    if tokens.shape[1] > context:
        got, do = f"{tokens.shape[1]} tokens", "shorten the sequences, or set model.context"
        raise TaskError("a sequence", expected=f"at most context = {context} tokens", got=got, do=do)
    embedded: Tensor = embedding(tokens) + positions.weight[: tokens.shape[1]]
    return embedded


class TokenEmbedding(nn.Module):
    """The first layer of a decoder in a pipeline, [B, T] -> [B, T, width]."""

    def __init__(self, tokens: nn.Embedding, positions: nn.Embedding) -> None:
        super().__init__()
        self.tokens, self.positions = tokens, positions

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed the tokens and their positions."""
        return embed_tokens(tokens, self.tokens, self.positions)


class TiedOutput(nn.Module):
    """The last layer of a decoder in a pipeline: layer norm, and logits by the embedding's own weights."""

    def __init__(self, norm: nn.LayerNorm, tokens: nn.Embedding) -> None:
        super().__init__()
        self.norm, self.tokens = norm, tokens

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [B, T, width] to [B, T, vocabulary]."""
        return F.linear(self.norm(hidden), self.tokens.weight)


class Decoder(nn.Module):
    """A decoder-only language model: the logits of the next token at every position."""

    def __init__(self, vocabulary: int, width: int, num_layers: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=True, dropout=dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        initialise(self, num_layers)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens [B, T] to logits [B, T, vocabulary]; the output layer shares the embedding's weights."""
        hidden = embed_tokens(tokens, self.tokens, self.positions)
        for block in self.blocks:
            hidden = block(hidden)
        return F.linear(self.norm(hidden), self.tokens.weight)

    def pipeline_layers(self) -> list[nn.Module]:
        """Return the layers, one after the other; they share their parameters with the model."""
        embedding, output = TokenEmbedding(self.tokens, self.positions), TiedOutput(self.norm, self.tokens)
        return [embedding, *self.blocks, output]


def decoder(
    *,
    vocabulary: int = NUM_BYTES,
    width: int = 64,
    num_layers: int = 2,
    heads: int = 4,
    context: int = 64,
    dropout: float = 0.0,
) -> nn.Module:
    """Build a decoder-only transformer.

    Args:
        vocabulary: number of tokens; 256 reads bytes.
        width: width of the residual path.
        num_layers: number of blocks.
        heads: attention heads of a block; a divisor of the width.
        context: longest sequence.
        dropout: probability of dropping a correction to the residual path.

    >>> sum(parameter.numel() for parameter in decoder().parameters())
    120576
    """
    return Decoder(vocabulary, width, num_layers, heads, context, dropout)


class ByteClassifier(nn.Module):
    """A bidirectional transformer over padded byte sequences, averaged over the positions that are not padding.

    A convolution over 7 bytes with stride 3 comes first: it reads parts of words and makes the sequence shorter.
    """

    STRIDE = 3

    def __init__(self, num_classes: int, width: int, num_layers: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(NUM_BYTES, width)
        self.parts = nn.Conv1d(width, width, 7, stride=self.STRIDE, padding=3)
        self.positions = nn.Embedding(-(-context // self.STRIDE), width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=False, dropout=dropout) for _ in range(num_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_classes)
        initialise(self, num_layers)
        nn.init.normal_(self.tokens.weight)  # a convolution reads them, no residual path adds them up

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Map bytes [B, T], of which ``lengths`` [B] count, to the logits of the classes, [B, classes]."""
        is_text = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        embedded = self.tokens(tokens) * is_text[:, :, None]  # what the convolution reads must not depend on padding
        hidden = F.gelu(self.parts(embedded.transpose(1, 2))).transpose(1, 2)  # [B, T / 3, width]
        mask = is_text[:, :: self.STRIDE]
        hidden = hidden + self.positions.weight[: hidden.shape[1]]
        for block in self.blocks:
            hidden = block(hidden, mask)
        counted = mask[:, :, None].to(hidden.dtype)
        mean = (self.norm(hidden) * counted).sum(1) / counted.sum(1).clamp(min=1)
        logits: Tensor = self.head(mean)
        return logits


def byte_classifier(
    *,
    num_classes: int = 8,
    width: int = 32,
    num_layers: int = 2,
    heads: int = 4,
    context: int = 128,
    dropout: float = 0.0,
) -> nn.Module:
    """Build a classifier of byte sequences of different lengths; see :func:`decoder` for the arguments.

    >>> model = byte_classifier()
    >>> model(torch.zeros(2, 9, dtype=torch.int64), torch.tensor([9, 4])).shape
    torch.Size([2, 8])
    """
    return ByteClassifier(num_classes, width, num_layers, heads, context, dropout)
