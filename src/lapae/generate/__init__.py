"""New samples from the density of latent codes."""
