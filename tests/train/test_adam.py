"""Adam and its schedule against torch's own, and what training imports."""

import subprocess
import sys

import pytest
import torch

from lapae.methods.adam import Adam, Plateau

IMPORTS = """
import sys
import numpy as np
from lapae import LaplacianAutoencoder
x = np.random.default_rng(0).normal(size=(60, 3))
heavy = ("matplotlib", "torch.onnx", "torch._dynamo", "sympy", "tensorboard", "onnx")
for number, (method, hessian) in enumerate([("online", None), ("online", "approx"), ("ensemble", None)]):
    model = LaplacianAutoencoder(epochs=2, method=method, hessian=hessian, random_state=0).fit(x)
    model.score_samples(x), model.impute(np.where(x > 1, np.nan, x))
    model.save(f"{sys.argv[1]}/{number}")
    LaplacianAutoencoder.load(f"{sys.argv[1]}/{number}").score_samples(x)
    print(method, hessian, [name for name in heavy if name in sys.modules])
"""


def groups() -> list[dict]:
    torch.manual_seed(0)
    tensors = [torch.randn(4, 3), torch.randn(3), torch.randn(2)]
    return [{"params": tensors[:2], "lr": 0.1}, {"params": tensors[2:], "lr": 0.01}]


def test_the_same_steps_as_torch():
    mine, theirs = groups(), groups()
    ours, torchs = Adam(mine), torch.optim.Adam(theirs, fused=True)
    for step in range(5):
        for own, other in zip(mine, theirs, strict=True):
            for a, b in zip(own["params"], other["params"], strict=True):
                skipped = step == 2 and a.ndim == 1
                a.grad = None if skipped else torch.sin(a * (step + 1))
                b.grad = None if skipped else torch.sin(b * (step + 1))
        ours.step()
        torchs.step()
    for own, other in zip(mine, theirs, strict=True):
        for a, b in zip(own["params"], other["params"], strict=True):
            assert torch.equal(a, b)
    ours.zero_grad()
    assert all(p.grad is None for group in mine for p in group["params"])


def test_a_state_that_was_taken_over_goes_on_as_before():
    first, second = groups(), groups()
    one, two = Adam(first), Adam(second)
    for adam, own in ((one, first), (two, second)):
        for group in own:
            for p in group["params"]:
                p.grad = p.clone()
        adam.step()
    two.load({index: {name: t.clone() for name, t in held.items()} for index, held in one.state.items()})
    one.step()
    two.step()
    assert all(torch.equal(a, b) for a, b in zip(first[0]["params"], second[0]["params"], strict=True))
    with pytest.raises(ValueError, match="no parameter 3"):
        two.load({3: one.state[0]})
    with pytest.raises(ValueError, match="parameter 1 is not Adam's"):
        two.load({1: one.state[0]})


def test_the_rate_falls_as_torch_has_it():
    losses = [3.0, 2.0, 2.0, *[2.5] * 5, 1.0, *[1.5] * 13, 0.5]
    ours, theirs = Adam(groups()), torch.optim.Adam(groups())
    mine = Plateau(ours)
    other = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, factor=0.5, patience=5, threshold=0.0)
    for loss in losses:
        mine.step(loss)
        other.step(loss)
        assert [g["lr"] for g in ours.param_groups] == [g["lr"] for g in theirs.param_groups]
    assert ours.param_groups[0]["lr"] < 0.1


def test_what_is_not_needed_is_not_imported(tmp_path):
    done = subprocess.run([sys.executable, "-c", IMPORTS, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["online None []", "online approx []", "ensemble None []"]
