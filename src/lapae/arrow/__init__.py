"""A trained run as a function from Arrow record batches to Arrow record batches, for any engine (`lapae.mapper`)."""
