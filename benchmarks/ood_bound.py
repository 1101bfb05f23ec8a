"""Out-of-distribution detection against its forward passes: everything but them should cost at most half of them.

Times `detect` of the task (drawing the networks, all statistics, the metrics with their bootstrap) and as many plain
forward passes of one network over the same images, in turn, and prints the ratio of the fastest of each. On a CPU it is
the processor time of one thread, which other programs on the machine disturb least.

    python benchmarks/ood_bound.py --images 2000 --networks 20 --method bbb
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from lapae.config import NETWORKS, Config, MethodConfig
from lapae.curvature.likelihoods import Gaussian
from lapae.data import Data, Split
from lapae.methods import METHODS, build
from lapae.model import Model
from lapae.space import Space
from lapae_paper.tasks import ood


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000, help="of each of the two sets")
    parser.add_argument("--networks", type=int, default=20, help="networks to draw")
    parser.add_argument("--network", default="paper-mnist", choices=NETWORKS)
    parser.add_argument("--method", default="bbb", choices=sorted(METHODS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    on_cpu = args.device == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter

    torch.manual_seed(0)
    shape = (1, 28, 28)
    make = NETWORKS[args.network].load()
    config = MethodConfig.taking(args.method, members=args.networks)
    method = build(config, lambda: make(shape, 2), Gaussian(), 60_000).to(args.device)
    network = make(shape, 2).to(args.device)
    inside, outside = torch.rand(2, args.images, *shape)
    splits = [Split(part.numpy(), None) for part in (inside[:2], inside[:0], inside[:0], inside)]  # two for typicality
    data = Data(Space("image", shape), *splits)
    model = Model(method, Config(), data.space)
    inside, outside = inside.to(args.device), outside.to(args.device)

    @torch.no_grad()
    def forward_passes() -> None:
        for _ in range(args.networks):
            for batch in (*inside.split(512), *outside.split(512)):
                network(batch)

    def detect() -> None:
        ood.detect(model, data, {"other": outside}, ood.OodOptions(n_samples=args.networks))

    times: dict[str, list[float]] = {"forward": [], "ood": []}
    for _ in range(args.repeat + 1):  # the first round warms up
        for name, run in (("forward", forward_passes), ("ood", detect)):
            start = clock()
            run()
            if not on_cpu:
                torch.cuda.synchronize()
            times[name].append(clock() - start)
    best = {name: min(values[1:]) for name, values in times.items()}
    print(json.dumps({**vars(args), **best, "ratio": best["ood"] / best["forward"], "bound": 1.5}, indent=2))


if __name__ == "__main__":
    main()
