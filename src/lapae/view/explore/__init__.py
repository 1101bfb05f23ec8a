"""The latent space of a run in a browser: a small server built on the standard library, and one page."""
