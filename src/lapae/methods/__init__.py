"""Methods: ways to train an autoencoder, behind one protocol (`base.Method`)."""

from lapae.config import METHODS
from lapae.methods.ae import AE
from lapae.methods.ae_var import AEVar
from lapae.methods.base import Draws, Method, Output, Point, build, register
from lapae.methods.bbb import BBB
from lapae.methods.dropout import Dropout
from lapae.methods.ensemble import Ensemble
from lapae.methods.online import Online
from lapae.methods.online_ensemble import OnlineEnsemble
from lapae.methods.posthoc import PostHoc
from lapae.methods.vae import VAE
from lapae.methods.weights import WeightDraws

__all__ = [
    "AE",
    "BBB",
    "METHODS",
    "VAE",
    "AEVar",
    "Draws",
    "Dropout",
    "Ensemble",
    "Method",
    "Online",
    "OnlineEnsemble",
    "Output",
    "Point",
    "PostHoc",
    "WeightDraws",
    "build",
    "register",
]
