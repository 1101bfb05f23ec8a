"""Pages about a trained model: the report (one HTML file) and the explorer (served), both around a latent map."""
