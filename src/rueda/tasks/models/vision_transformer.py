"""The vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929): an image is a sequence of patches.

Each patch of the image is projected to a vector, positions are added, and the class is read from the mean of the last
layer over all patches (as in Beyer et al. 2022, arXiv:2205.01580, which needs no class token).
"""

from __future__ import annotations

from torch import Tensor, nn

from rueda.errors import TaskError
from rueda.tasks.models.transformer import Block, initialise


class PatchEmbedding(nn.Module):
    """The first layer in a pipeline, [B, C, H, W] -> [B, patches, width]."""

    def __init__(self, patches: nn.Conv2d, positions: nn.Embedding) -> None:
        super().__init__()
        self.patches, self.positions = patches, positions

    def forward(self, images: Tensor) -> Tensor:
        """Project each patch and add its position."""
        embedded: Tensor = self.patches(images).flatten(2).transpose(1, 2) + self.positions.weight
        return embedded


class MeanOutput(nn.Module):
    """The last layer in a pipeline: norm, the mean over all patches, and the logits of the classes, [B, classes]."""

    def __init__(self, norm: nn.LayerNorm, head: nn.Linear) -> None:
        super().__init__()
        self.norm, self.head = norm, head

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [B, patches, width] to [B, classes]."""
        logits: Tensor = self.head(self.norm(hidden).mean(1))
        return logits


class VisionTransformer(nn.Module):
    """Patches, blocks without a causal mask, mean over the patches, a linear layer."""

    def __init__(self, patches: nn.Conv2d, num_patches: int, num_classes: int, num_layers: int, heads: int) -> None:
        super().__init__()
        width = patches.out_channels
        self.patches, self.positions = patches, nn.Embedding(num_patches, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=False) for _ in range(num_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_classes)
        initialise(self, num_layers)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, C, H, W] to logits [B, classes]."""
        hidden = self.patches(images).flatten(2).transpose(1, 2) + self.positions.weight
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden).mean(1))
        return logits

    def pipeline_layers(self) -> list[nn.Module]:
        """Return the layers, one after the other; they share their parameters with the model."""
        first, last = PatchEmbedding(self.patches, self.positions), MeanOutput(self.norm, self.head)
        return [first, *self.blocks, last]


def vision_transformer(
    *,
    in_channels: int = 1,
    image_size: int = 28,
    patch: int = 7,
    num_classes: int = 10,
    width: int = 64,
    num_layers: int = 3,
    heads: int = 4,
) -> nn.Module:
    """Build a small vision transformer.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        image_size: height and width of the images.
        patch: height and width of a patch; a divisor of the image size.
        num_classes: number of classes.
        width: width of the residual path.
        num_layers: number of blocks.
        heads: attention heads of a block; a divisor of the width.

    >>> sum(parameter.numel() for parameter in vision_transformer().parameters())
    154954
    """
    if patch < 1 or image_size % patch:
        raise TaskError("patch", expected=f"a divisor of image_size = {image_size}", got=patch, do="choose another")
    num_patches = (image_size // patch) ** 2
    return VisionTransformer(
        nn.Conv2d(in_channels, width, patch, stride=patch), num_patches, num_classes, num_layers, heads
    )
