"""Autoencoders that know what they do not know."""
