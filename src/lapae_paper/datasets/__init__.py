"""The paper's data sets, made known to `lapae` through the entry point group `lapae.datasets`.

Nothing heavy is imported here: the names are listed in messages. (Names in capitals, because a module of the package
would take the place of an entry of its own name.)
"""

from lapae.registry import Entry

MNIST = Entry("70,000 handwritten digits, 28x28 gray, 10 classes", "lapae_paper.datasets.mnist:MNIST")
FASHION_MNIST = Entry("70,000 pieces of clothing, 28x28 gray, 10 classes", "lapae_paper.datasets.mnist:FASHION_MNIST")
CELEBA = Entry("202,599 faces, 64x64 colour, 40 attributes; fetched by hand", "lapae_paper.datasets.celeba:CELEBA")
