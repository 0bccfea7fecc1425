"""The loss landscape around a trained model: surfaces, lines, the training path, interpolation."""
