"""Write generated images without labels: images.npy, 8 bits, [240, 3, 32, 32]."""

import numpy as np

rng = np.random.default_rng(0)
y, x = np.mgrid[0:32, 0:32] / 6.0
images = np.empty((240, 3, 32, 32), np.uint8)
for image in images:
    angle, phase = rng.uniform(0, np.pi), rng.uniform(0, 6)
    waves = np.sin(3 * (x * np.cos(angle) + y * np.sin(angle)) + phase)
    image[:] = (120 + waves * rng.uniform(40, 110, (3, 1, 1)) + rng.normal(0, 10, (3, 32, 32))).clip(0, 255)
np.save("images.npy", images)
print("240 images in images.npy")
