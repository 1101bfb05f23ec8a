"""The cache of trained models, and training side by side."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest
from narrow import sure
from trained import assert_same

from lapae.cli import main
from lapae.errors import ConfigError
from lapae_paper.experiments import (
    EXPERIMENTS,
    Outcome,
    Size,
    Table,
    Trial,
    Workspace,
    experiment,
    find,
    hessian,
    training,
)
from lapae_paper.experiments.training import fit_all
from lapae_paper.experiments.trials import dense
from lapae_paper.experiments.workspace import commit, key

QUICK = Size(quick=True)


def plan(size: Size) -> dict[str, Trial]:
    good, bad = dense(size, "online"), dense(size, "online", update="redux", uncertain="encoder")
    return {"good": good, "bad": bad, "fitted": dense(size, "posthoc")}


@pytest.fixture
def mine():
    @experiment("mine", of="nothing", about="a test", minutes=(0, 0), plan=plan)
    def run(workspace: Workspace) -> Outcome:
        return Outcome([Table("t", ("a",), [("1",)])], raw={"a": 1.0})

    yield find("mine")
    del EXPERIMENTS["mine"]


def test_a_model_that_cannot_be_trained_fails_its_experiment_alone(mine, tmp_path):
    lines: list[str] = []
    workspace = Workspace(mine, QUICK, tmp_path, device="cpu")
    failed = fit_all([workspace], 1, lines.append)
    assert list(failed) == ["mine"]
    assert "keeps nothing of the precision" in failed["mine"]
    assert lines[0] == "4 models to train"  # those of the plan and what the third starts from
    assert sorted(
        path.name for path in (tmp_path / "runs").iterdir() if (path / "model.safetensors").exists()
    ) == sorted(
        key(sure(trial)) for trial in (workspace.plan["good"], workspace.plan["fitted"], workspace.plan["fitted"].start)
    )
    again: list[str] = []
    fit_all([workspace], 1, again.append)
    assert again[0] == "1 model to train"


def test_the_command_says_what_was_not_done(mine, tmp_path, capsys):
    assert main(["reproduce", "mine", "--quick", "--device", "cpu", "--out", str(tmp_path)]) == 2
    assert "not done: mine (bad: ConfigError: update='redux' keeps nothing" in capsys.readouterr().err
    assert (tmp_path / "results.md").read_text("utf-8").strip() == "# Results"


def test_processes_train_what_one_does(tmp_path):
    workspace = Workspace(find("linearization"), QUICK, tmp_path / "many", device="cpu")
    assert fit_all([workspace], 2, lambda line: None) == {}
    alone = Workspace(find("linearization"), QUICK, tmp_path / "one", device="cpu")
    assert fit_all([alone], 1, lambda line: None) == {}
    for name in workspace.plan:
        several, one = workspace.model(name).method.state_dict(), alone.model(name).method.state_dict()
        assert all((several[k] == one[k]).all() for k in one)


def test_processes_share_the_threads():
    """With all threads each, two of them took ten times as long on two processors."""
    import torch

    with ProcessPoolExecutor(1, get_context("spawn"), training._start, (1,)) as pool:
        assert pool.submit(torch.get_num_threads).result() == 1


def test_a_key_is_of_the_model_and_not_of_the_place():
    trial = dense(QUICK, "online")
    elsewhere = replace(
        trial,
        config=replace(
            trial.config,
            train=replace(trial.config.train, device="cuda", verbose=False),
            data=replace(trial.config.data, data_dir="there"),
        ),
    )
    assert key(trial) == key(elsewhere)
    others = [
        dense(QUICK, "online", seed=1),
        dense(QUICK, "online", hessian="mc"),
        dense(QUICK, "ae"),
        replace(trial, start=dense(QUICK, "ae")),
        dense(Size(), "online"),
    ]
    assert len({key(other) for other in [trial, *others]}) == len(others) + 1


def test_list_and_mistakes(capsys):
    assert main(["reproduce", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in EXPERIMENTS)
    assert main(["reproduce", "nothing"]) == 2
    assert "expected one of teaser, hessian" in capsys.readouterr().err
    assert main(["reproduce"]) == 2
    assert main(["reproduce", "hessian", "--jobs", "0"]) == 2
    with pytest.raises(ConfigError, match="unknown experiment"):
        find("nothing")


def test_fewer_seeds():
    assert list(Size().seeds(5)) == [0, 1, 2, 3, 4]
    assert list(Size(most_seeds=2).seeds(5)) == [0, 1]
    assert list(Size(quick=True, most_seeds=2).seeds(5)) == [0]


def test_the_faulty_rule_multiplies_by_the_channels():
    import torch
    from torch import nn

    from lapae.curvature import ggn_diagonal
    from lapae.curvature.likelihoods import Gaussian
    from lapae_paper.variants.faulty_upsampling import FaultyUpsample

    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 1), nn.Upsample(scale_factor=2), nn.Conv2d(4, 4, 1)]
    right = nn.Sequential(*layers)
    wrong = nn.Sequential(layers[0], FaultyUpsample(scale_factor=2), layers[2])
    x = torch.rand(2, 1, 3, 3)
    a, b = (ggn_diagonal(network, x, Gaussian(), "approx") for network in (right, wrong))
    torch.testing.assert_close(a["2.weight"], b["2.weight"])  # after the upsampling
    expected = a["0.weight"].sum(0, keepdim=True).expand_as(a["0.weight"])
    torch.testing.assert_close(b["0.weight"], expected)  # before it: the sum over channels, in every channel


def test_a_variant_is_given_by_its_seed(tmp_path):
    """Its initial weights too: those of the network that it stands in for, whatever was drawn before."""
    import torch

    from lapae.networks.builtin import conv
    from lapae_paper.variants.faulty_upsampling import faulty_conv

    trial = find("ood").plan(Size(quick=True))["quick: LAE (online), faulty rule, seed 0"]
    workspaces = [Workspace(find("ood"), Size(quick=True), tmp_path / place, device="cpu") for place in ("a", "b")]
    for workspace in workspaces:
        torch.rand(3)
        workspace.fit(trial)
    assert_same(*(workspace.folder(trial) for workspace in workspaces))
    networks = []
    for make in (conv, faulty_conv):
        torch.manual_seed(1)
        networks.append(make((1, 8, 8), 2, channels=(4, 8), hidden=(16,)))
    assert all(torch.equal(a, b) for a, b in zip(*(network.parameters() for network in networks), strict=True))


def test_an_interrupted_experiment_keeps_what_it_has_measured(tmp_path, monkeypatch):
    """The second time it measures what is missing, the third time nothing, and needs no model for that."""
    asked: list[str] = []
    errors = hessian.squared_errors

    def counted(model, part, **options):
        asked.append(model.config.method.hessian)
        if len(asked) == 6 and stop:
            raise KeyboardInterrupt
        return errors(model, part, **options)

    monkeypatch.setattr(hessian, "squared_errors", counted)
    monkeypatch.setitem(hessian.ROWS, "post-hoc KFAC", ("online", {"hessian": "approx"}))  # as quick as the next
    monkeypatch.setattr(hessian, "ROWS", {name: hessian.ROWS[name] for name in ("post-hoc KFAC", "online exact")})
    command = ["reproduce", "hessian", "--quick", "--seeds", "1", "--device", "cpu", "--out", str(tmp_path)]
    stop = True
    assert main(command) == 130
    assert asked == [*["approx"] * 3, *["exact"] * 3]  # three splits each; the last was not measured
    asked.clear()
    assert main([*command, "--again"]) == 130
    assert asked == [*["approx"] * 3, *["exact"] * 3]
    stop = False
    asked.clear()
    assert main(command) == 0
    assert asked == ["exact"] * 3
    record = (tmp_path / "hessian" / "result.json").read_text("utf-8")
    shutil.rmtree(tmp_path / "runs")
    asked.clear()
    assert main(command) == 0
    assert not asked
    assert not (tmp_path / "runs").exists()
    again = (tmp_path / "hessian" / "result.json").read_text("utf-8")
    assert json.loads(again)["tables"] == json.loads(record)["tables"]


def test_processes_measure_for_every_experiment_that_asks(tmp_path):
    """A model of two plans is trained once, and measured for both by the process that trained it."""
    workspaces = [
        Workspace(find(name), Size(True, 1), tmp_path, device="cpu") for name in ("linearization", "vae-variance")
    ]
    lines: list[str] = []
    assert fit_all(workspaces, 2, lines.append) == {}
    assert lines[0] == "4 models to train"
    for workspace in workspaces:
        for name in workspace.plan:
            assert workspace.done(name)
            kept = workspace.kept(name)
            assert kept is not None
            assert kept["found"]
    assert fit_all(workspaces, 2, lines.append) == {}
    shutil.rmtree(workspaces[0].folder_of_measures)
    fit_all(workspaces, 1, lines.append)
    assert "2 models to measure" in lines


def test_tables_of_what_was_measured_elsewhere(tmp_path, capsys):
    """Of any machine, with the seeds that are there; nothing is trained."""
    command = ["reproduce", "vae-variance", "--quick", "--device", "cpu", "--out", str(tmp_path)]
    assert main([*command, "--kept"]) == 2
    assert "holds no measurements of vae-variance" in capsys.readouterr().err
    assert main(command) == 0
    for path in (tmp_path / "vae-variance" / "measured").glob("*.json"):
        path.rename(path.with_name("of_another_version.json"))
    (path,) = (tmp_path / "vae-variance" / "measured").glob("*.json")
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"machine": "another", "commit": "abc", "date": "2026-01-01"})
    )
    shutil.rmtree(tmp_path / "runs")
    assert main([*command, "--kept"]) == 0
    record = json.loads((tmp_path / "vae-variance" / "result.json").read_text("utf-8"))
    assert (record["machine"], record["commits"], record["date"]) == ("another", ["abc"], "2026-01-01")
    assert not (tmp_path / "runs").exists()
    assert main([*command, "--kept", "--again"]) == 2


def test_commit_of_files_without_a_history(tmp_path, monkeypatch):
    """A machine that is sent files alone is told which commit they are of."""
    module = tmp_path / "src" / "lapae" / "__init__.py"
    monkeypatch.setattr("lapae.__file__", str(module))
    commit.cache_clear()
    try:
        monkeypatch.delenv("LAPAE_COMMIT", raising=False)
        assert commit() is None
        commit.cache_clear()
        monkeypatch.setenv("LAPAE_COMMIT", "0123456789")
        assert commit() == "0123456789"
    finally:
        commit.cache_clear()
