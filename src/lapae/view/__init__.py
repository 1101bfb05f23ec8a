"""What a person looks at: the report of a run and the explorer, on one latent map."""
