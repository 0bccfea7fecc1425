"""Write folders of small generated images, one for each of ten classes: images/train and images/val."""

from pathlib import Path

import numpy as np
from PIL import Image

rng = np.random.default_rng(0)
y, x = np.mgrid[0:40, 0:48] / 8.0
for split, num_images in (("train", 24), ("val", 7)):
    for label in range(10):
        folder = Path("images", split, f"class{label}")
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(num_images):
            angle, phase = np.pi * label / 10, rng.uniform(0, 6)
            waves = np.sin(3 * (x * np.cos(angle) + y * np.sin(angle)) + phase)
            tint = rng.uniform(60, 120, size=3)
            pixels = 120 + waves[:, :, None] * tint + rng.normal(0, 20, (40, 48, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number:03}.png")
print("240 images in images/train, 70 in images/val")
