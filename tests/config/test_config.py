"""Configuration files: what is written reads back the same; what is wrong is named."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapae.cli import main
from lapae.config import METHODS, Config, DataConfig, MethodConfig, ModelConfig, TrainConfig
from lapae.errors import ConfigError
from lapae.runs.toml import config_from_dict, config_to_dict, dumps, read_config, write_config

text = st.text(st.characters(exclude_categories=["Cs"]))  # surrogates are not text: no UTF-8 for them
values = st.one_of(text, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans())
tables = st.dictionaries(text, st.dictionaries(text, values | st.lists(values)))

configs = st.builds(
    Config,
    st.builds(DataConfig, source=text, data_dir=st.none() | text, validation_fraction=st.none() | st.floats(0, 1)),
    st.builds(ModelConfig, hidden=st.none() | st.lists(st.integers(1, 999)).map(tuple), sigma=st.floats(1e-9, 1e9)),
    st.builds(
        MethodConfig.taking,
        method=st.sampled_from(sorted(METHODS)),
        forgetting=st.floats(0, 1),
        learned_variance=st.booleans(),
        samples_per_step=st.integers(1, 9),
    ),
    st.builds(TrainConfig, epochs=st.integers(0, 10**9), device=st.sampled_from(["auto", "cpu", "cuda"])),
)


@given(tables)
def test_toml_reads_back_what_was_written(content):
    assert tomllib.loads(dumps(content)) == content


@given(configs)
def test_config_reads_back_what_was_written(config):
    assert config_from_dict(tomllib.loads(write_config(config)), "here") == config
    assert config_from_dict(config_to_dict(config), "here") == config


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[train]\nepoch = 3", "unknown key train.epoch: did you mean 'epochs'?"),
        ("[model]\nlatent = 3", "did you mean 'latent_dim'?"),
        ("[trian]\nepochs = 3", "unknown key 'trian': did you mean 'train'?"),
        ("epochs = 3", "unknown key 'epochs': it belongs into the table [train]"),
        ("[model]\nzzz = 3", "unknown key model.zzz: expected one of network, latent_dim"),
        ("[train]\nepochs = 3.5", "train.epochs: expected an integer, got float 3.5"),
        ("[train]\nepochs = true", "train.epochs: expected an integer, got bool True"),
        ("[train]\nepochs = '3'", "train.epochs: expected an integer, got str '3'"),
        ("[train]\nlearning_rate = '3'", "train.learning_rate: expected a number"),
        ("[train]\ndevice = 'tpu'", "train.device: expected one of auto, cpu, cuda, got str 'tpu'"),
        ("[method]\nsamples_per_step = 'two'", "expected an integer, got str 'two'"),
        ("[method]\nsamples_per_step = true", "expected an integer, got bool True"),
        ("[train]\nverbose = 1", "train.verbose: expected true or false"),
        ("[model]\nhidden = [1, 'a']", "model.hidden: expected a list of integers, got list [1, 'a']"),
        ("[model]\nhidden = 3", "model.hidden: expected a list of integers, got int 3"),
        ("[data]\nsource = 3", "data.source: expected a string"),
        ("train = 3", "train must be a table [train], got int 3"),
        ("[train\n", "is not valid TOML"),
        ("[train]\nlearning_rate = 1" + "0" * 400, "too large"),
    ],
)
def test_mistakes_are_named_with_the_file(tmp_path, content, complaint):
    path = tmp_path / "mine.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"mine\.toml") as error:
        read_config(path)
    assert complaint in str(error.value)


def test_files_that_are_not_text(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        read_config(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_config(tmp_path / "binary.toml")


def test_partial_file_keeps_defaults_and_integers_are_numbers(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[train]\nlearning_rate = 1\n[versions]\nanything = 3\n")
    assert read_config(path) == Config(train=TrainConfig(learning_rate=1.0))


def test_resolved_fills_in_the_forgetting():
    assert Config(train=TrainConfig(learning_rate=0.5)).resolved().method.forgetting == 0.5
    assert Config(method=MethodConfig(forgetting=0.1)).resolved().method.forgetting == 0.1


@pytest.mark.parametrize(
    ("section", "option", "value"),
    [
        ("train", "epochs", -1),
        ("train", "batch_size", 0),
        ("train", "learning_rate", float("nan")),
        ("train", "seed", -1),
        ("train", "seed", 2**63),  # a run that config.toml could not say
        ("data", "limit", 10**30),
        ("model", "latent_dim", 0),
        ("model", "hidden", (3, 0)),
        ("method", "samples_per_step", 0),
        ("method", "samples_per_step", "two"),
        ("method", "prior_precision", 0.0),
    ],
)
def test_impossible_numbers(section, option, value):
    config = Config()
    config = dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **{option: value})})
    with pytest.raises(ConfigError, match=option):
        config.resolved()


def test_impossible_number_of_another_method():
    with pytest.raises(ConfigError, match=r"dropout = 1.0: expected a probability"):
        Config(method=MethodConfig("dropout", dropout=1.0)).resolved()


def test_method_and_its_options():
    config = MethodConfig("online", hessian="mc")
    assert config.hessian == "mc"
    assert config == dataclasses.replace(MethodConfig(), hessian="mc") != MethodConfig()
    assert hash(config) == hash(MethodConfig("online", hessian="mc"))
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config
    assert config.title == "online Laplacian autoencoder"
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.method = "ae"  # pyright: ignore
    with pytest.raises(AttributeError, match="'online' has no option 'kl_weight': it belongs to vae"):
        config.kl_weight  # noqa: B018
    posthoc = dataclasses.replace(config, method="posthoc")  # what both have stays
    assert posthoc == MethodConfig("posthoc", hessian="mc")
    assert MethodConfig.taking("ae", hessian="mc", n_samples=3) == MethodConfig("ae", n_samples=3)


@pytest.mark.parametrize(
    ("method", "option", "complaint"),
    [
        ("ae", "hessian", "the method 'ae' has no option 'hessian': it belongs to online, posthoc"),
        ("online", "hesian", "the method 'online' has no option 'hesian': did you mean 'hessian'?"),
        ("onlin", "hessian", "unknown method 'onlin': did you mean 'online'?"),
    ],
)
def test_options_that_a_method_does_not_have(method, option, complaint, tmp_path, capsys):
    given: dict[str, Any] = {option: "mc"}
    with pytest.raises(ConfigError) as error:
        MethodConfig(method, **given)
    assert complaint in str(error.value)
    file = tmp_path / "mine.toml"
    file.write_text(f"[method]\nmethod = '{method}'\n{option} = 'mc'\n")
    with pytest.raises(ConfigError, match=r"mine\.toml") as error:
        read_config(file)
    assert complaint in str(error.value)
    assert main(["train", "--config", str(file)]) == 2
    assert complaint in capsys.readouterr().err


def test_a_flag_of_another_method_is_refused(capsys):
    assert main(["train", "--method", "ae", "--kl-weight=3"]) == 2
    assert "the method 'ae' has no option 'kl_weight': it belongs to vae" in capsys.readouterr().err


def test_help_shows_the_options_of_the_method_that_is_chosen(capsys):
    shown = {}
    for method in ("online", "dropout"):
        with pytest.raises(SystemExit):
            main(["train", "--method", method, "--help-all"])
        shown[method] = capsys.readouterr().out
        assert all(f"{name} " in shown[method] for name in METHODS.visible())
        assert "variational autoencoder" in shown[method]
    assert "--dropout" in shown["dropout"]
    assert "--dropout" not in shown["online"]
    assert "--forgetting" in shown["online"]
    assert "--forgetting" not in shown["dropout"]


def test_help_hides_what_is_for_research_unless_it_is_asked_for(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["train", "--help-all"])
    everything = capsys.readouterr().out
    for name in ("noisy-adam", "faulty-conv"):
        assert name not in shown
        assert name in everything
    assert main(["train", "--method", "nosy"]) == 2
    assert "noisy-adam" not in capsys.readouterr().err
    assert main(["train", "--method", "dropout", "--forgetting", "0.1"]) == 2
    assert "it belongs to online, online-ensemble\n" in capsys.readouterr().err


def test_flags_choose_a_method_and_keep_what_the_file_says_of_all(tmp_path):
    from lapae.cli.train import parse

    file = tmp_path / "mine.toml"
    file.write_text("[method]\nhessian = 'mc'\nn_samples = 7\n")
    command = parse(["--config", str(file), "--method", "dropout", "--dropout", "0.5"])
    assert command.configuration.method == MethodConfig("dropout", n_samples=7, dropout=0.5)


def test_no_two_options_share_a_name():
    """Flags are not prefixed, so names must differ over the tables."""
    sections = [DataConfig, ModelConfig, TrainConfig]
    for entry in METHODS.values():
        names = ["method", *(f.name for section in [*sections, entry.options] for f in dataclasses.fields(section))]
        assert len(names) == len(set(names))


def test_a_huge_learning_rate_is_no_impossible_forgetting():
    assert Config(train=TrainConfig(learning_rate=1e6)).resolved().method.forgetting == 1.0
    assert Config(train=TrainConfig(learning_rate=0.1)).resolved().method.forgetting == 0.1


def test_options_of_earlier_versions_are_ignored(tmp_path):
    path = tmp_path / "config.toml"
    gone = "devices = 2\nnum_nodes = 1\ncapture = 'never'\ncheckpoint_every = 3"
    path.write_text(f"[train]\nepochs = 3\n{gone}\n[method]\nmethod = 'online'\nsamples_per_step = 'ranks'\n")
    assert read_config(path) == Config(train=TrainConfig(epochs=3))
    path.write_text("[method]\nsamples_per_step = 3\n")
    assert read_config(path) == Config(method=MethodConfig(samples_per_step=3))
