"""What fuzzing (and thinking about it) found, one case each, and what no file may do."""

from __future__ import annotations

import ast
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lapae
from lapae.config import Config, DataConfig, ModelConfig, TrainConfig
from lapae.data import DataError, load
from lapae.data.table import TableReader
from lapae.errors import ConfigError, LapaeError, RunError
from lapae.fit import fit, load_data
from lapae.posterior import update_rule
from lapae.runs import CHECKPOINT, MODEL, Run, read_tensor_file, tensor_file
from lapae.runs.toml import read_config
from lapae.space import Space
from lapae.storage import load_run
from lapae.train.resume import saved_config
from lapae_paper.datasets.celeba import read_celeba

SOURCE = Path(lapae.__file__).parent


def npy(shape: str, body: bytes = b"", descr: str = "'<f8'") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x02\0" + len(header).to_bytes(4, "little") + header + body


@pytest.mark.parametrize(
    "content",
    [
        npy("(" * 500),  # numpy raises tokenize.TokenError
        npy(f"({'9' * 4000},{'9' * 4000})"),  # a product of more digits than Python writes
        npy(f"(0,{2**62})"),
        npy(f"({'1,' * 70})", bytes(8)),  # more axes than an array can have
        npy("(5, True)", bytes(40)),
        npy("(5, 2)", bytes(80), "'|O'"),
        npy("(9, 2)", bytes(144), "[('a', '<f8')]"),
    ],
)
def test_array_headers(content, tmp_path):
    (tmp_path / "x.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content)
    for name in ("x.npy", "x.npz"):
        with pytest.raises(DataError, match=r"x\.np"):
            load(tmp_path / name)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_archives_packed_otherwise_and_damaged(method, tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("x.npy", npy("(50, 2)", np.arange(100.0).tobytes()))
    content, n_refused = bytearray(buffer.getvalue()), 0
    for at in range(38, len(content) - 60, 7):  # within the packed member
        damaged = bytearray(content)
        damaged[at] ^= 0xFF
        (tmp_path / "x.npz").write_bytes(damaged)
        try:
            data = load(tmp_path / "x.npz")
        except DataError:
            n_refused += 1
        else:  # a byte that does not matter: the checksum agrees
            assert sum(map(len, (data.train, data.valid, data.calib, data.test))) == 50
    assert n_refused > 5


def test_an_honest_bomb_is_refused_before_it_is_unpacked(tmp_path):
    """A thousand times larger unpacked: the size is known from the archive, and held against the bound."""
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy("(50, 2)", bytes(800)))
    content = path.read_bytes()
    size = (50 * 2 * 8 + len(npy("(50, 2)"))).to_bytes(4, "little")
    assert content.count(size) == 2  # in the local header and in the directory
    for claimed in (2**32 - 2, 2**31):
        path.write_bytes(content.replace(size, claimed.to_bytes(4, "little")))
        with pytest.raises(DataError, match=r"claims|unpacked|sound|bomb"):
            load(path)


def test_undecodable_new_table(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"a,b\n1,\x81\n")
    with pytest.raises(DataError, match=r"cannot be read as \.csv"):
        list(TableReader(tmp_path / "x.csv", Space("table", (2,))).blocks(lambda n: None))


@pytest.mark.parametrize(
    "text",
    ["epochs = " + "9" * 5000, "epochs = 0x" + "f" * 4000, "verbose = 0x" + "f" * 4000, "epochs = " + "[" * 9999],
)
def test_numbers_and_lists_without_end_in_toml(text, tmp_path):
    (tmp_path / "x.toml").write_text(f"[train]\n{text}\n")
    with pytest.raises(ConfigError, match=r"x\.toml"):
        read_config(tmp_path / "x.toml")


@pytest.mark.parametrize("share", [float("inf"), float("nan"), -1.0, 1.5, 1e300])
def test_shares_of_validation_data_that_are_none(share):
    with pytest.raises(DataError, match="validation="):
        load_data(DataConfig(validation_fraction=share))


@pytest.mark.parametrize("name", ["../secret.jpg", "..", "/etc/passwd", "a\0.jpg", "a/b.jpg", "./x.jpg"])
def test_celeba_names_lead_nowhere_else(name, tmp_path, monkeypatch):
    monkeypatch.setenv("LAPAE_CACHE", str(tmp_path / "cache"))
    images = tmp_path / "celeba" / "img_align_celeba"
    images.mkdir(parents=True)
    Image.new("RGB", (178, 218)).save(tmp_path / "celeba" / "secret.jpg")
    (tmp_path / "celeba" / "list_eval_partition.txt").write_text(f"{name} 0\n")
    (tmp_path / "celeba" / "list_attr_celeba.txt").write_text(f"1\nA\n{name} 1\n")
    with pytest.raises(DataError, match=r"row 1: .* expected a file name"):
        read_celeba(tmp_path / "celeba")


def test_links_to_folders_are_not_followed(tmp_path):
    """A link to a file is the user's way to pick images; a folder that is linked into itself would never end."""
    (tmp_path / "images").mkdir()
    for i in range(4):
        Image.new("L", (4, 4), i).save(tmp_path / "images" / f"{i}.png")
    (tmp_path / "outside").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "outside" / "secret.png")
    (tmp_path / "images" / "loop").symlink_to(tmp_path / "images")
    (tmp_path / "images" / "out").symlink_to(tmp_path / "outside")
    data = load(tmp_path / "images")
    assert len(data.train) + len(data.valid) + len(data.test) == 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(20, 4)))
    config = Config(model=ModelConfig(hidden=(4,)), train=TrainConfig(epochs=1, device="cpu", verbose=False))
    fit(config, load(folder / "x.npy"), run=Run.create(folder / "run"))
    return folder / "run"


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"model": {"hidden": [2**20, 2**20]}}},
        {"config": {"model": {"latent_dim": 2**40}}},
        {"config": {"method": {"method": "posthoc", "hessian": "block"}, "model": {"hidden": [10**6]}}},
        {"config": {"model": {"hidden": [0]}}},
        {"config": 3},
        {"space": {"shape": [2**40]}},
        {"space": {"shape": [2**62, 2**62]}},
        {"space": {"shape": [-1]}},
        {"space": {"shape": "x"}},
        {"space": {"kind": "x"}},
        {"space": {"n_data": None}},
        {"space": {"offset": [0.0, 0.0, 0.0]}},
        {"space": {"label_names": 3}},
        {"space": []},
    ],
    ids=json.dumps,
)
def test_models_that_say_what_is_not_so(change, trained):
    """With a digest that agrees: a clear error, before memory is taken for what is not there."""
    tensors, metadata = read_tensor_file(trained / MODEL)
    good = (trained / MODEL).read_bytes()
    for key, value in change.items():
        if isinstance(value, dict):
            for inner, item in value.items():
                held = metadata[key][inner]
                metadata[key][inner] = {**held, **item} if isinstance(held, dict) and isinstance(item, dict) else item
        else:
            metadata[key] = value
    try:
        (trained / MODEL).write_bytes(tensor_file(tensors, metadata))
        with pytest.raises(LapaeError, match=r"model\.safetensors|hidden|latent_dim"):
            load_run(trained)
    finally:
        (trained / MODEL).write_bytes(good)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("state", {"n_data": 16, "epoch": 1, "best_epoch": 1, "best_loss": 1.0, "history": 3}),
        ("state", {"n_data": 16, "epoch": "x", "best_epoch": 1, "best_loss": 1.0, "history": []}),
        ("state", {"n_data": 16, "epoch": 1, "best_epoch": 1, "best_loss": "x", "history": []}),
        ("state", []),
        ("schedule", {"step": 1}),
        ("schedule", {"best": "x"}),
        ("learning_rates", []),
        ("learning_rates", [[]]),
        ("about", 3),
        ("about", {}),
        ("about", {"config": []}),
    ],
)
def test_checkpoints_that_say_what_is_not_so(key, value, trained, tmp_path):
    tensors, metadata = read_tensor_file(trained / CHECKPOINT)
    (tmp_path / CHECKPOINT).write_bytes(tensor_file(tensors, {**metadata, key: value}))
    with pytest.raises(LapaeError, match=r"checkpoint\.safetensors"):
        resumed(trained, tmp_path)


@pytest.mark.parametrize("name", ["optimizer.0.exp_avg_sq", "optimizer.0.exp_avg", "optimizer.0.step"])
@pytest.mark.parametrize("renamed", ["optimizer.0.x", "optimizer.999.exp_avg", "optimizer", "x"])
def test_checkpoints_without_the_state_of_adam(name, renamed, trained, tmp_path):
    tensors, metadata = read_tensor_file(trained / CHECKPOINT)
    tensors[renamed] = tensors.pop(name)
    (tmp_path / CHECKPOINT).write_bytes(tensor_file(tensors, metadata))
    with pytest.raises(RunError, match=r"checkpoint\.safetensors is damaged"):
        resumed(trained, tmp_path)


def resumed(trained: Path, path: Path) -> None:
    config = Config(model=ModelConfig(hidden=(4,)), train=TrainConfig(epochs=2, device="cpu", verbose=False))
    saved_config(Run(path))
    fit(config, load(trained.parent / "x.npy"), run=Run(path), resume=True)


def test_counts_without_end_take_no_time():
    """`hessian_every` of a hostile file is a number of terms in a sum."""
    assert update_rule("laplacian", 0.5).every(2**62).gain == 2.0
    assert update_rule("van", 0.5).every(4).gain == 2.0
    rule = update_rule("nng", 1e-3)
    assert rule.every(3).gain == pytest.approx(1e-3 * (1 + 0.999 + 0.999**2), rel=1e-12)


@pytest.mark.parametrize("text", ["[" * 100_000, "", "1", "[]", '{"format": 1}'])
def test_metadata_that_are_none(text, tmp_path):
    from safetensors.torch import save

    from lapae.runs import digest

    tensors = {"a": torch.ones(2)}
    (tmp_path / CHECKPOINT).write_bytes(save(tensors, {"lapae": text, "digest": digest(tensors, text)}))
    with pytest.raises(RunError, match=r"checkpoint\.safetensors"):
        fit(Config(train=TrainConfig(device="cpu", verbose=False)), run=Run(tmp_path), resume=True)


BANNED_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml", "jsonpickle"}
BANNED_CALLS = {"eval", "exec", "compile", "__import__"}
BANNED_METHODS = {"load": {"torch", "np", "numpy", "joblib"}, "system": {"os"}, "popen": {"os"}}


def banned(tree: ast.AST) -> list[str]:
    """What runs code out of a file: unpickling, evaluating, a shell."""
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        found += [f"import {name}" for name in names if name.split(".")[0] in BANNED_MODULES]
        if not isinstance(node, ast.Call):
            continue
        options = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
        if isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
            found.append(node.func.id)
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            owner, name = node.func.value.id, node.func.attr
            safe = options.get("weights_only") is True or options.get("allow_pickle") is False
            if owner in BANNED_METHODS.get(name, ()) and not safe:
                found.append(f"{owner}.{name}")
        if options.get("allow_pickle") is True or options.get("shell") is True:
            found.append(ast.unparse(node.func))
    return found


@pytest.mark.parametrize(
    "text",
    [
        *("import pickle", "from joblib import load", "import os.path, pickle as p", "eval('1')", "np.load('x')"),
        *("torch.load('x')", "np.load('x', allow_pickle=True)", "run('x', shell=True)", "os.system('x')"),
    ],
)
def test_the_check_finds(text):
    assert banned(ast.parse(text))


def test_nothing_in_the_package_runs_what_a_file_says():
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 100
    assert not banned(ast.parse("model.eval(); np.load('x', allow_pickle=False)"))
    assert {str(file): found for file in files if (found := banned(ast.parse(file.read_text("utf-8"))))} == {}
