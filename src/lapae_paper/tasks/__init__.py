"""The paper's tasks, made known to `lapae eval` through the entry point group `lapae.tasks`.

Each is a module with `evaluate(model, data, options) -> Result`. Nothing heavy is imported here: `lapae eval --help`
lists them. (Names in capitals, because a module of the package would take the place of an entry of its own name.)
"""

from lapae.evaluate import Task


def _task(name: str, title: str, note: str) -> Task:
    """Return the task of the module `name`: few_labels has `FewLabelsOptions`."""
    place = f"lapae_paper.tasks.{name}"
    return Task(title, f"{place}:evaluate", f"{place}:{name.title().replace('_', '')}Options", note)


OOD = _task(
    "ood",
    "Out-of-distribution detection by the paper's scores",
    "How well scores tell test samples from samples of another kind. AUROC 1 is perfect, 0.5 is chance.",
)
COMPLETION = _task(
    "completion",
    "Completion from noise by sampled networks",
    "A part of each test sample is hidden and completed by sampled networks; errors are against the truth.",
)
CLASSIFICATION = _task(
    "classification",
    "Classification of completed samples",
    "A classifier of clean samples sees samples with a part completed: how often it is right, and whether it knows.",
)
GENERATION = _task(
    "generation",
    "Generation from noise",
    "New samples from noise. Diversity and distance to the training data stand beside those of held-out samples.",
)
SEMI_SUPERVISED = _task(
    "semi_supervised",
    "Few labels",
    "Nearest neighbours among the latent codes of a few labelled samples, each embedded many times.",
)
CALIBRATION = _task(
    "calibration",
    "Calibration of the posterior's standard deviation",
    "Are errors larger where the networks of the posterior differ more?",
)
