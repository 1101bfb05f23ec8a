"""Configuration files: what is written reads back the same; what is wrong is named."""

from __future__ import annotations

import dataclasses
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapae.cli import main
from lapae.config import Config, DataConfig, MethodConfig, ModelConfig, TrainConfig
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
        MethodConfig,
        method=text,
        forgetting=st.none() | st.floats(0, 1),
        learned_variance=st.booleans(),
        samples_per_step=st.integers(1, 9) | st.just("ranks"),
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
        ("[train]\ndevice = 'tpu'", "train.device: expected one of 'auto', 'cpu', 'cuda', got str 'tpu'"),
        ("[method]\nsamples_per_step = 'two'", "expected an integer or one of 'ranks', got str 'two'"),
        ("[method]\nsamples_per_step = true", "expected an integer or one of 'ranks', got bool True"),
        ("[train]\nverbose = 1", "train.verbose: expected true or false"),
        ("[model]\nhidden = [1, 'a']", "model.hidden: expected an integer, got str 'a'"),
        ("[model]\nhidden = 3", "model.hidden: expected a list of an integer, got int 3"),
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
        ("train", "devices", 0),
        ("train", "num_nodes", 0),
        ("method", "samples_per_step", 0),
        ("method", "samples_per_step", "two"),
        ("method", "dropout", 1.0),
        ("method", "prior_precision", 0.0),
    ],
)
def test_impossible_numbers(section, option, value):
    config = Config()
    config = dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **{option: value})})
    with pytest.raises(ConfigError, match=option):
        config.resolved()


def test_no_two_options_share_a_name():
    """Flags are not prefixed, so names must differ over the tables."""
    names = [f.name for section in dataclasses.fields(Config) for f in dataclasses.fields(section.default_factory)]  # pyright: ignore
    assert len(names) == len(set(names))


def test_a_huge_learning_rate_is_no_impossible_forgetting():
    assert Config(train=TrainConfig(learning_rate=1e6)).resolved().method.forgetting == 1.0
    assert Config(train=TrainConfig(learning_rate=0.1)).resolved().method.forgetting == 0.1


@pytest.mark.parametrize("option", ["--devices", "--num-nodes"])
def test_no_processes_is_a_mistake_that_the_command_names(option, capsys):
    assert main(["train", "digits", option, "0"]) == 2
    assert "expected at least 1" in capsys.readouterr().err
