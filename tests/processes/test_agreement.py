"""What processes agree on: the first one's word, who loads first, and failures that end all of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from ranks import on_processes

from lapae.errors import ElsewhereError
from lapae.train import distributed as processes


def meet() -> int:
    processes.join()
    return processes.rank()


def loads(folder: str) -> float:
    """A load that downloads where the file is not there yet: only one may find it missing."""
    meet()

    def load() -> float:
        path = Path(folder) / "data"
        if path.exists():
            return float(path.read_text("utf-8"))
        time.sleep(0.3)
        with path.open("x") as file:
            file.write(str(time.time()))
        return float(path.read_text("utf-8"))

    return processes.node_first(load)


def test_one_process_of_a_machine_fetches(tmp_path):
    first, second = on_processes(loads, str(tmp_path))
    assert first == second


def failures(who: int) -> list[str]:
    """How a failure of one process ends in each, in the three ways to work together."""
    rank = meet()

    def fail() -> None:
        if rank == who:
            raise ValueError("no data here")

    ended = []
    for together in (processes.node_first, processes.from_first):
        try:
            together(fail)
            ended.append("well")
        except (ValueError, ElsewhereError) as error:
            ended.append(type(error).__name__)
    return ended


@pytest.mark.parametrize("who", [0, 1])
def test_a_failure_of_one_ends_all(who):
    found = on_processes(failures, who)
    assert found[who][0] == "ValueError"
    assert found[1 - who][0] == "ElsewhereError"
    assert [ended[1] for ended in found] == (["ValueError", "ElsewhereError"] if who == 0 else ["well", "well"])


def sums() -> tuple:
    rank = meet()
    tensors = [
        torch.full((2, 3), float(rank + 1)),
        torch.tensor(10.0 * (rank + 1)),
        torch.ones(4).double()[::2].float(),
    ]
    processes.start_sum(tensors)()
    said = processes.from_first(lambda: {"rank": rank, "nan": float("nan")})
    copied = torch.full((3,), rank)
    processes.copy_from_first(copied)
    return [tensor.tolist() for tensor in tensors], said["rank"], copied.tolist()


def test_sums_and_the_first_ones_word():
    for found in on_processes(sums):
        assert found == ([[[3.0] * 3] * 2, 30.0, [2.0, 2.0]], 0, [0, 0, 0])


def test_one_process_needs_no_others():
    x = torch.ones(2)
    processes.start_sum([x])()
    assert x.tolist() == [1.0, 1.0]
    assert processes.total(x) is x
    assert processes.from_first(lambda: {1: object}) == {1: object}
    assert processes.node_first(lambda: 3) == 3
    assert processes.stand_in(torch.ones(0, 2)).tolist() == [[0.0, 0.0]]
    assert processes.stand_in(x) is x
