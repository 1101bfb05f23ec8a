"""Find small faults in large pictures, by tiles: python examples/fabric.py OUT

Pictures of a simulated fabric are learned by tiles of 32x32 pixels, with the commands of a user. Writes OUT/tiles.png:
a good picture and two with a scratch, red where they are unusual. Prints how many of each kind are flagged.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from lapae.cli import main as lapae

SIZE = (96, 160)


def fabric(rng: np.random.Generator, scratch: bool = False) -> Image.Image:
    """A weave at a random place, with noise; with a thin bright scratch if asked for."""
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    first, second, third = rng.uniform(0, 2 * np.pi, 3)
    weave = 0.18 * np.sin(columns / 5 + first) * np.sin(rows / 7 + second) + 0.08 * np.sin(
        (rows + columns) / 11 + third
    )
    x = (0.5 + weave)[..., None] * [0.9, 0.7, 0.5] + rng.normal(0, 0.03, (*SIZE, 3))
    if scratch:
        row, column = rng.integers(10, SIZE[0] - 20), rng.integers(10, SIZE[1] - 40)
        for step in range(24):
            x[row + step // 3 : row + step // 3 + 2, column + step] += 0.25
    return Image.fromarray((255 * x.clip(0, 1)).astype(np.uint8))


def main(out: Path) -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for kind, n in (("train", 60), ("good", 20), ("scratched", 20)):
            (place / kind).mkdir()
            for i in range(n):
                fabric(rng, scratch=kind == "scratched").save(place / kind / f"{i:03}.png")
        run = str(place / "run")
        lapae(["train", str(place / "train"), "--tile", "32", "--epochs", "2", "--out", run, "--no-verbose"])
        for kind in ("good", "scratched"):
            scores = place / f"{kind}.csv"
            lapae(["score", run, str(place / kind), "-o", str(scores), "--maps", str(place / f"{kind}_maps")])
            flagged = sum(line.endswith(",1") for line in scores.read_text().splitlines())
            print(f"{kind}: {flagged} of 20 flagged")
        shown = ["good_maps/000.png", "scratched_maps/000.png", "scratched_maps/001.png"]
        pictures = [np.asarray(Image.open(place / file)) for file in shown]
    gap = np.full((SIZE[0], 6, 3), 255, np.uint8)
    sheet = np.concatenate([pictures[0], gap, pictures[1], gap, pictures[2]], 1)
    out.mkdir(parents=True, exist_ok=True)
    Image.fromarray(sheet.repeat(2, 0).repeat(2, 1)).save(out / "tiles.png")
    print(f"wrote {out / 'tiles.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
