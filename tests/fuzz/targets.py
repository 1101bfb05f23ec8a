"""What is fuzzed: for each format some sound files, words of the format, and the loader that must stay calm."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import random
import shutil
import struct
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .mutate import mutated, mutated_tree

Make = Callable[[random.Random], bytes]
Read = Callable[[Path], Any]


@dataclass(frozen=True)
class Target:
    """One loader: `make` an input, write it under `name`, `read` it."""

    name: str
    make: Make
    read: Read


def bytewise(seeds: list[bytes], words: tuple[bytes, ...]) -> Make:
    return lambda chance: mutated(chance.choice(seeds), chance, words, seeds)


def find(name: str, folder: Path) -> Target:
    """The target of that name, with what it needs prepared in `folder`."""
    plain = {"idx": idx, "npy": npy, "npz": npz, "csv": csv, "toml": toml}
    if name in plain:
        return plain[name]()
    if name == "celeba":
        return celeba(folder)
    if name in BROKEN:
        return Target("x.broken", lambda chance: b"", BROKEN[name])
    kind = runs if name in ("safetensors", "model", "checkpoint", "estimator", "metrics") else images
    if kind not in _FAMILIES:
        _FAMILIES[kind] = kind(folder)
    return _FAMILIES[kind][name]


_FAMILIES: dict[Any, dict[str, Target]] = {}
"""Targets that are prepared together, once."""


BROKEN: dict[str, Read] = {
    "error": lambda path: int(path.name),
    "hang": lambda path: time.sleep(60),
    "memory": lambda path: bytearray(2**31),
    "crash": lambda path: os.abort(),
}
"""What the driver must notice: its own test."""


def idx() -> Target:
    from lapae_paper.datasets.idx import read_idx

    images_ = bytes((0, 0, 8, 3)) + struct.pack(">3I", 4, 3, 5) + bytes(range(60))
    labels = bytes((0, 0, 8, 1)) + struct.pack(">I", 7) + bytes(7)
    plain = [images_, labels]

    def make(chance: random.Random) -> bytes:
        content = mutated(chance.choice(plain), chance, (b"\0\0\x08\x03", b"\xff\xff\xff\xff"), plain)
        kind = chance.randrange(3)  # plain; mutated, then packed; packed, then mutated
        if kind == 0:
            return content
        packed = gzip.compress(content if kind == 1 else chance.choice(plain), 1, mtime=0)
        return packed if kind == 1 else mutated(packed, chance, (), plain)

    def read(path: Path) -> None:
        packed = path.read_bytes()[:2] == b"\x1f\x8b"
        real = path.with_suffix(".gz") if packed else path
        if packed:
            shutil.copyfile(path, real)
        from lapae.errors import DataError

        for ndim in (1, 3):
            try:
                read_idx(real, ndim=ndim)
            except DataError:
                if ndim == 3:
                    raise

    return Target("x.idx", make, read)


def arrays() -> list[np.ndarray]:
    chance = np.random.default_rng(0)
    return [
        chance.normal(size=(9, 4)),
        chance.integers(0, 255, (5, 6, 6), dtype=np.uint8),
        chance.random((4, 5, 5, 3), dtype=np.float32),
        np.asfortranarray(chance.normal(size=(6, 3)).astype(">f4")),
        np.array([[True, False]] * 4),
        np.arange(10),
    ]


NPY_WORDS = (
    *(b"'<f8'", b"'|O'", b"'|u1'", b"'>f4'", b"'<U9'", b"'|V0'", b"'<M8[ns]'", b"[('a','<f4')]", b"True", b"(", b")"),
    *(b"(0,)", b"(-1,)", b"(2,2,)", b"99999999999999999999,", b"0x7fffffff,", b"1,1,1,1,1,1,1,1,", b"'shape': ", b"}"),
    *(b"\x93NUMPY\x01\0", b"\x93NUMPY\x02\0", b"\x93NUMPY\x03\0", b"((((((((", b"1L,", b"1e9,", b"'", b"\n", b"\\N{"),
)


def npy() -> Target:
    from lapae.data import load

    seeds = []
    for array in arrays():
        buffer = io.BytesIO()
        np.save(buffer, array)
        seeds.append(buffer.getvalue())

    def read(path: Path) -> None:
        np.asarray(load(path, allow_nan=True).train.x[:2])

    return Target("x.npy", bytewise(seeds, NPY_WORDS), read)


def npz() -> Target:
    from lapae.data import load

    seeds = []
    for i, array in enumerate(arrays()):
        for save in (np.savez, np.savez_compressed):
            buffer = io.BytesIO()
            fields: dict[str, Any] = {"x": array} | ({"y": np.arange(len(array)) % 3} if i % 2 else {})
            save(buffer, **fields)
            seeds.append(buffer.getvalue())

    def make(chance: random.Random) -> bytes:
        if chance.random() < 0.5:
            return mutated(
                chance.choice(seeds), chance, (*NPY_WORDS, b"PK\x01\x02", b"x.npy", b"y.npy", b"\x0e\0"), seeds
            )
        import zipfile

        buffer = io.BytesIO()  # a sound archive of an unsound array
        with zipfile.ZipFile(buffer, "w", chance.choice((0, 8, 12, 14))) as archive:
            for name in chance.choice((("x.npy",), ("x.npy", "y.npy"), ("../x.npy",), ("x.npy", "x.npy"), ("x", "y"))):
                inner = io.BytesIO()
                np.save(inner, chance.choice(arrays()))
                content = mutated(inner.getvalue(), chance, NPY_WORDS, [])
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    archive.writestr(name, content)
        return buffer.getvalue()

    def read(path: Path) -> None:
        np.asarray(load(path, allow_nan=True).train.x[:2])

    return Target("x.npz", make, read)


CSV_WORDS = tuple(
    *[
        b'"|""|,|;|\t|\r|\n|\r\n|\0|nan|inf|-inf|1e999|1_000|NA||\xef\xbb\xbf|\xff|\xc3\xa9|=cmd|0x10|1e-400'.split(
            b"|"
        )
    ],
)


def csv() -> Target:
    from lapae.data import load
    from lapae.data.table import TableReader
    from lapae.space import Column, Space

    rows = [f"{i},{i * 0.5},{-i},{'ab'[i % 2]}" for i in range(12)]
    seeds = [
        ("a,b,c,label\n" + "\n".join(rows)).encode(),
        "\n".join(",".join(row.split(",")[:3]) for row in rows).encode(),
        ("\ufeffx;y\r\n" + "".join(f'"{i}";{i}\r\n' for i in range(9))).encode(),
        b'a\tb\n1\t\n"2"\t3\n' * 3,
        b"1," * 2000 + b"1\n" + b"2," * 2000 + b"1\n" + b"3," * 2000 + b"1",
    ]

    space = Space("table", (3,), columns=tuple(map(Column, "abc")))

    def read(path: Path) -> None:
        from lapae.errors import DataError

        try:
            for _ in TableReader(path, space).blocks(lambda n: None):  # pyright: ignore
                pass
        except DataError:
            pass
        try:
            load(path, label_column="label", allow_nan=True)
        except DataError:
            load(path, label_column=-1)

    return Target("x.csv", bytewise(seeds, CSV_WORDS), read)


TOML_WORDS = (
    *(
        b"[train]\n",
        b"[[train]]\n",
        b"epochs = ",
        b"0x" + b"f" * 4000,
        b"1" * 5000,
        b"inf",
        b"nan",
        b"1979-05-27",
        b"{",
    ),
    *(
        b"[" * 2000,
        b"a." * 500,
        b'"""',
        b"'''",
        b'"\\U00110000"',
        b'"\\ud800"',
        b"= [",
        b"= {a=1}",
        b"\0",
        b"\xff",
        b"-1",
    ),
    *(b"9223372036854775808", b"true", b"[data.source]\n", b"1e400"),
)


def toml() -> Target:
    from lapae.config import Config
    from lapae.runs.toml import config_to_dict, dumps, read_config, write_config

    base = config_to_dict(Config().resolved())
    text = write_config(Config())
    seeds = [text.encode(), b"[train]\nepochs = 3\n[model]\nhidden = [4, 5]\n", b"[data]\nsource = 'x'\n"]

    def make(chance: random.Random) -> bytes:
        if chance.random() < 0.6:
            return mutated(chance.choice(seeds), chance, TOML_WORDS, seeds)
        try:
            return dumps(mutated_tree(copy.deepcopy(base), chance)).encode()
        except (TypeError, AttributeError, UnicodeError):
            return text.encode()[: chance.randrange(len(text))]

    def read(path: Path) -> None:
        config = read_config(path).resolved()
        write_config(config)

    return Target("x.toml", make, read)


def pictures() -> dict[str, list[bytes]]:
    """Sound files by suffix."""
    chance = np.random.default_rng(1)
    colour = Image.fromarray(chance.integers(0, 255, (9, 11, 3), dtype=np.uint8))
    gray = colour.convert("L")
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds: list[tuple[str, str, Image.Image, dict[str, Any]]] = [
        ("png", "PNG", colour, {}),
        ("png", "PNG", gray, {}),
        ("png", "PNG", colour.convert("P"), {"transparency": 3}),
        ("png", "PNG", colour.convert("RGBA"), {"compress_level": 0}),
        ("png", "PNG", Image.fromarray(chance.integers(0, 65535, (6, 6), dtype=np.uint16)), {}),
        ("jpg", "JPEG", colour, {"exif": exif}),
        ("jpg", "JPEG", gray, {"progressive": True}),
        ("gif", "GIF", gray, {"save_all": True, "append_images": [gray, gray]}),
        ("bmp", "BMP", colour, {}),
        ("tiff", "TIFF", colour, {"compression": "tiff_lzw"}),
        ("tiff", "TIFF", gray, {"compression": "raw"}),
        ("tiff", "TIFF", gray.convert("1"), {"compression": "group4"}),
        ("webp", "WEBP", colour, {}),
        ("ppm", "PPM", colour, {}),
        ("pgm", "PPM", gray, {}),
    ]
    found: dict[str, list[bytes]] = {}
    for suffix, name, image, options in kinds:
        buffer = io.BytesIO()
        image.save(buffer, name, **options)
        found.setdefault(suffix, []).append(buffer.getvalue())
    return found


IMAGE_WORDS = (
    *(
        b"IHDR",
        b"IDAT",
        b"IEND",
        b"PLTE",
        b"tRNS",
        b"iCCP",
        b"zTXt",
        b"acTL",
        b"eXIf",
        b"\xff\xd8",
        b"\xff\xda",
        b"\xff\xe1",
    ),
    *(
        b"GIF89a",
        b"RIFF",
        b"WEBPVP8X",
        b"II*\0",
        b"MM\0*",
        b"BM",
        b"P6\n",
        b"P1 ",
        b"9999999 9999999 255\n",
        b"Exif\0\0",
    ),
    *(b"\xff\xff\xff\xff", b"\0\x01\0\0\0\x01\0\0", b"%!PS", b"P6 65535 65535 255 "),
)


def images(folder: Path) -> dict[str, Target]:
    """A file alone, and one in a folder among sound ones."""
    from lapae.data import load
    from lapae.data.image_files import decode, read_header

    kinds = pictures()
    every = [content for contents in kinds.values() for content in contents]
    place = folder / "images"
    place.mkdir()
    for i in range(3):
        (place / f"{i}.png").write_bytes(kinds["png"][i])

    def one(path: Path) -> None:
        header = read_header(path)
        decode(path, (8, 8), gray=header.gray)

    def among(path: Path) -> None:
        shutil.copyfile(path, place / "hostile.png")
        data = load(place)
        for split in (data.train, data.valid, data.test):
            np.asarray(split.x[:])

    words = IMAGE_WORDS
    made = {
        suffix: Target(f"x.{suffix}", lambda chance, own=own: mutated(chance.choice(own), chance, words, every), one)
        for suffix, own in kinds.items()
    }
    return made | {"folder": Target("x.any", bytewise(every, words), among)}


def celeba(folder: Path) -> Target:
    """The two lists; the images are small and sound."""
    from lapae.data import load

    place, outside = folder / "data" / "celeba", folder / "data" / "secret.jpg"
    (place / "img_align_celeba").mkdir(parents=True)
    face = Image.fromarray(np.full((109, 89, 3), 99, np.uint8))
    names = [f"00000{i}.jpg" for i in range(6)]
    for path in (*(place / "img_align_celeba" / name for name in names), outside):
        face.save(path)
    partition = "".join(f"{name} {i % 3}\n" for i, name in enumerate(names)).encode()
    attributes = ("6\nA B\n" + "".join(f"{name}  1 -1\n" for name in names)).encode()
    words = (
        b"../",
        b"../../secret.jpg 0\n",
        b"/etc/passwd 1\n",
        b"..",
        b"\0",
        b"-1",
        b" 3\n",
        b"9" * 20,
        b"\n\n",
        b"\xff",
    )

    def make(chance: random.Random) -> bytes:
        first = chance.random() < 0.5
        if chance.random() < 0.05:
            return partition + b"\x1e" + attributes
        kept = mutated(partition, chance, words, []) if first else partition
        other = attributes if first else mutated(attributes, chance, words, [])
        return kept + b"\x1e" + other

    def read(path: Path) -> None:
        one, _, two = path.read_bytes().partition(b"\x1e")
        (place / "list_eval_partition.txt").write_bytes(one)
        (place / "list_attr_celeba.txt").write_bytes(two)
        os.environ["LAPAE_CACHE"] = str(folder / "cache")
        load("celeba", data_dir=folder / "data", image_size=8)

    return Target("x.lists", make, read)


def runs(folder: Path) -> dict[str, Target]:
    """The files of a run: their bytes, and sound files that say something else."""
    from safetensors.torch import save

    from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
    from lapae.data import load
    from lapae.estimator import LaplacianAutoencoder
    from lapae.fit import fit
    from lapae.runs import CHECKPOINT, CONFIG, METRICS, MODEL, Run, digest, read_tensor_file
    from lapae.runs.texts import sealed, unsealed
    from lapae.storage import load_run

    source = folder / "table.npy"
    np.save(source, np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))
    config = Config(
        model=ModelConfig(hidden=(4,)),
        method=MethodConfig(method="online", n_samples=2),
        train=TrainConfig(epochs=1, device="cpu", verbose=False),
    ).resolved()
    data = load(source)
    fit(config, data, run=Run.create(folder / "run"))
    LaplacianAutoencoder(epochs=1, device="cpu", hessian="approx").fit(np.load(source)).save(folder / "estimator")
    model = (folder / "run" / MODEL).read_bytes()
    checkpoint = (folder / "run" / CHECKPOINT).read_bytes()
    about = (folder / "estimator" / "estimator.json").read_bytes()
    words = (
        b'"F32"',
        b'"BF16"',
        b'"F8_E4M3"',
        b'"shape":[',
        b'"data_offsets":[0,',
        b"999999999999",
        b"{",
        b"}",
        b"[]",
        b'"I64"',
    )

    def retold(path: Path) -> Make:
        """Sound tensor files with metadata that lie, and a digest that agrees with them."""
        tensors, metadata = read_tensor_file(path)

        def make(chance: random.Random) -> bytes:
            held = dict(tensors)
            if chance.random() < 0.3:
                name = chance.choice(list(held))
                held[chance.choice(("x", name, "optimizer.x", "optimizer.99.exp_avg"))] = (
                    held.pop(name).reshape(-1)[:1].clone()
                )
            text = json.dumps(mutated_tree(copy.deepcopy(metadata), chance))
            if chance.random() < 0.02:
                text = chance.choice(("[" * 100_000, "{", "", "1", "[]", '{"a":' * 5000))
            return save(held, {"lapae": text, "digest": digest(held, text)})

        return make

    def read_tensors(path: Path) -> None:
        read_tensor_file(path)

    def read_model(path: Path) -> None:
        shutil.copyfile(path, folder / "run" / MODEL)
        try:
            load_run(folder / "run")
        finally:
            (folder / "run" / MODEL).write_bytes(model)

    def read_checkpoint(path: Path) -> None:
        run = folder / "resumed"
        run.mkdir(exist_ok=True)
        for file in run.iterdir():
            file.unlink()
        shutil.copyfile(folder / "run" / CONFIG, run / CONFIG)
        shutil.copyfile(path, run / CHECKPOINT)
        fit(config, data, run=Run(run), resume=True)

    def read_estimator(path: Path) -> None:
        shutil.copyfile(path, folder / "estimator" / "estimator.json")
        LaplacianAutoencoder.load(folder / "estimator")

    def make_about(chance: random.Random) -> bytes:
        if chance.random() < 0.3:
            return mutated(about, chance, (b"null", b"{", b"[", b"1e999", b"NaN"), [])
        told = mutated_tree(unsealed(about), chance)  # with a digest that agrees, or it is refused unread
        return sealed(told) if isinstance(told, dict) else json.dumps(told).encode()

    def read_metrics(path: Path) -> None:
        shutil.copyfile(path, folder / "run" / METRICS)
        Run(folder / "run").read_metrics()

    return {
        "safetensors": Target("x.safetensors", bytewise([model, checkpoint], words), read_tensors),
        "model": Target("x.safetensors", retold(folder / "run" / MODEL), read_model),
        "checkpoint": Target("x.safetensors", retold(folder / "run" / CHECKPOINT), read_checkpoint),
        "estimator": Target("x.json", make_about, read_estimator),
        "metrics": Target(
            "x.json", bytewise([(folder / "run" / METRICS).read_bytes()], (b"[" * 9999, b"NaN", b"\xff")), read_metrics
        ),
    }
