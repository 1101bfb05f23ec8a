"""One score for images: does it see what is unusual in any way, with nothing chosen per set?

    python benchmarks/oneness.py --data FOLDER [--sets fashion_mnist mnist faces] [--seeds 0] [--out results.jsonl]
    python benchmarks/oneness.py --table results.jsonl

FOLDER is the data folder of the tests (mnist, fashion_mnist, celeba). A model with the estimator's defaults is fitted
to some training images of one set, and asked about new ones of it and about the other set, and blurred (5x5 mean),
inverted, faint (times 0.3), noisy (0.3), shifted (7 pixels), blank and grey versions. AUROC of the score, beside that
of the log-likelihood, and the share that `predict` flags at a rate of 5 %. One line of results per set and seed; what
the file has already is not done again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path

import numpy as np

SETS = ("fashion_mnist", "mnist", "faces")


def load(name: str, folder: Path, part: str = "train") -> np.ndarray:
    """Images (n, 28, 28), or faces (n, 64, 64, 3), from 0 to 1."""
    if name != "faces":
        raw = gzip.decompress((folder / name / f"{part}-images-idx3-ubyte.gz").read_bytes())
        return np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 28, 28).astype(np.float32) / 255
    from PIL import Image

    found = []
    paths = sorted((folder / "celeba" / "img_align_celeba").glob("*.jpg"))
    for path in paths[:1500] if part == "train" else paths[-600:]:
        with Image.open(path) as image:
            width, height = image.size
            box = (0, (height - width) // 2, width, (height - width) // 2 + width)
            found.append(np.asarray(image.crop(box).resize((64, 64), Image.Resampling.BILINEAR)))
    return np.stack(found).astype(np.float32) / 255


def blurred(x: np.ndarray, size: int = 5) -> np.ndarray:
    """The mean over squares of `size` pixels."""
    from scipy.ndimage import uniform_filter

    return uniform_filter(x, size, mode="constant", axes=(1, 2))


def versions(x: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Unusual versions of images x (n, H, W, …)."""
    noise = rng.standard_normal(x.shape).astype(np.float32)
    return {
        "blurred": blurred(x),
        "inverted": 1 - x,
        "faint": 0.3 * x,
        "noisy": np.clip(x + 0.3 * noise, 0, 1),
        "shifted": np.roll(x, 7, axis=2),
        "blank": np.zeros_like(x),
        "grey": np.full_like(x, 0.5),
        "noise": rng.random(x.shape, np.float32),
    }


def run(name: str, folder: Path, seed: int, n_train: int, n_test: int, epochs: int | None, device: str) -> dict:
    from sklearn.metrics import roc_auc_score

    from lapae import LaplacianAutoencoder

    rng = np.random.default_rng(seed)
    train = load(name, folder)
    train = train[rng.permutation(len(train))[:n_train]]
    new = load(name, folder, "t10k")
    new = new[rng.permutation(len(new))[:n_test]]
    unusual = versions(new, rng)
    if name != "faces":
        other = load("mnist" if name == "fashion_mnist" else "fashion_mnist", folder, "t10k")
        unusual = {"other set": other[rng.permutation(len(other))[:n_test]], **unusual}
    began = time.perf_counter()
    model = LaplacianAutoencoder(random_state=seed, device=device, epochs=epochs).fit(train)
    found: dict = {"set": name, "seed": seed, "train": len(train), "new": len(new)}
    found["seconds"] = round(time.perf_counter() - began, 1)
    normal = -model.score_samples(new)
    likely = model.score_parts(new)["negative_log_likelihood"]
    found["false alarms"] = float((model.predict(new) == -1).mean())
    for what, x in unusual.items():
        truth = np.arange(len(new) + len(x)) >= len(new)
        auroc = roc_auc_score(truth, np.concatenate([normal, -model.score_samples(x)]))
        by_density = roc_auc_score(truth, np.concatenate([likely, model.score_parts(x)["negative_log_likelihood"]]))
        flagged = float((model.predict(x) == -1).mean())
        found[what] = {"auroc": float(auroc), "log-likelihood": float(by_density), "flagged": flagged}
    return found


def table(rows: list[dict]) -> str:
    """AUROC of the score, that of the log-likelihood in brackets, in Markdown."""
    kinds = list(dict.fromkeys(key for row in rows for key, value in row.items() if isinstance(value, dict)))
    lines = [
        f"| in | seed | {' | '.join(kinds)} | mean | worst | false alarms at 5 % |",
        "|---" * (len(kinds) + 5) + "|",
    ]
    for row in rows:
        there = [row.get(kind) for kind in kinds]
        cells = [f"{v['auroc']:.3f} ({v['log-likelihood']:.2f})" if v else "" for v in there]
        both = [[v[key] for v in there if v] for key in ("auroc", "log-likelihood")]
        mean, worst = (f"{of(both[0]):.3f} ({of(both[1]):.2f})" for of in (np.mean, np.min))
        lines.append(
            f"| {row['set']} | {row['seed']} | {' | '.join(cells)} | {mean} | {worst} | {row['false alarms']:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--train", type=int, default=4000)
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("oneness.jsonl"))
    parser.add_argument("--table", type=Path, help="print the summary of a file of results, and do nothing else")
    args = parser.parse_args()
    if args.table is not None:
        print(table([json.loads(line) for line in args.table.read_text("utf-8").splitlines()]))
        return
    if args.data is None:
        parser.error("--data is needed")
    rows = [json.loads(line) for line in args.out.read_text("utf-8").splitlines()] if args.out.exists() else []
    done = {(row["set"], row["seed"]) for row in rows}
    for seed in args.seeds:
        for name in args.sets:
            if (name, seed) not in done:
                rows.append(run(name, args.data, seed, args.train, args.test, args.epochs, args.device))
                with args.out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(name, seed, f"{rows[-1]['seconds']:.0f} s", flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
