"""Every way to train an autoencoder, behind one protocol (`base.Method`)."""

from lapae.methods.ae import AE
from lapae.methods.base import METHODS, Draws, Method, Output, Point, build, register

__all__ = ["AE", "METHODS", "Draws", "Method", "Output", "Point", "build", "register"]
