"""A trained model to look at: the report (one page) and the explorer (a served one), on one latent map."""
