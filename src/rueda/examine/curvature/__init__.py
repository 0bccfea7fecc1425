"""The curvature at a trained model: Hessian eigenvalues, trace, spectral density, and sharpness."""
