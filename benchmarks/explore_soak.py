"""Soak of `lapae explore`: many requests from several clients at once, with the server's memory and its answers' times.

    lapae train mnist --limit 8000 --epochs 12 --out runs/mnist
    python benchmarks/explore_soak.py runs/mnist --requests 10000 --clients 8

Prints a JSON object. Times are of this machine; `alone` is one client that moves over the map, as a person does.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

import numpy as np


def memory(pid: int) -> float:
    """Resident megabytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) / 1024


class Client:
    """A connection that asks at random, as the page would."""

    def __init__(self, port: int, seed: int) -> None:
        self.connection = HTTPConnection("127.0.0.1", port, timeout=120)
        self.random = random.Random(seed)
        self.about = self.send("GET", "/api/opening")
        self.values = self.ask("item", {"split": "test", "index": seed})["values"]
        self.times: list[float] = []
        self.errors: list[str] = []

    def send(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json"):
        self.connection.request(method, path, body, {"Content-Type": kind})
        response = self.connection.getresponse()
        content = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {content}")
        return content

    def ask(self, question: str, body: dict):
        return self.send("POST", f"/api/{question}", json.dumps(body).encode())

    def move(self) -> None:
        at = [self.random.uniform(axis["low"], axis["high"]) for axis in self.about["axes"][:2]]
        began = time.perf_counter()
        self.ask("place", {"axes": [0, 1], "at": at, "anchor": None})
        self.times.append(time.perf_counter() - began)

    def something(self) -> None:
        chance = self.random.random()
        if chance < 0.90:
            self.move()
        elif chance < 0.94:
            self.ask("item", {"split": "test", "index": self.random.randrange(self.about["splits"]["test"])})
        elif chance < 0.97:
            first = self.random.randrange(len(self.values) // 2)
            hidden = [None if first <= i < 2 * len(self.values) // 3 else v for i, v in enumerate(self.values)]
            self.ask("complete", {"values": hidden, "seed": self.random.randrange(3)})
        elif chance < 0.99:
            x = np.array(self.values, np.uint8).reshape(1, *self.about["shape"])
            header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {x.shape}, }}".ljust(117) + "\n"
            body = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + x.tobytes()
            self.send("POST", "/api/upload?row=0", body, "application/octet-stream")
        else:
            self.ask("heat", {"axes": self.random.choice(([0, 1], [1, 0])), "anchor": None, "of": "deviation"})

    def run(self, n: int) -> None:
        for _ in range(n):
            try:
                self.something()
            except Exception as error:
                self.errors.append(repr(error))
                self.connection.close()


def together(clients: list[Client], n: int) -> None:
    """n requests of each, all at once: none is idle for so long that the server closes its connection."""
    threads = [threading.Thread(target=client.run, args=(n,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def told(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=100)
    return {"moves": len(times), "median_ms": round(1e3 * cuts[49], 1), "p99_ms": round(1e3 * cuts[98], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    command = [sys.executable, "-m", "lapae", "explore", options.run, "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            port = int(re.search(r":(\d+)/", server.stdout.readline()).group(1))
            alone = Client(port, 0)
            for _ in range(400):
                alone.move()
            clients = [Client(port, seed) for seed in range(options.clients)]
            together(clients, 100)  # what is kept for later requests is there before memory is looked at
            held = [memory(server.pid)]
            began = time.perf_counter()
            tenths, share = 10, options.requests // options.clients // 10
            for _ in range(tenths):
                together(clients, share)
                held.append(memory(server.pid))
            seconds = time.perf_counter() - began
            result = {
                "requests": tenths * share * options.clients,
                "clients": options.clients,
                "errors": [error for client in clients for error in client.errors],
                "seconds": round(seconds, 1),
                "memory_mb": [round(megabytes) for megabytes in held],
                "alone": told(alone.times[20:]),
                "together": told([t for client in clients for t in client.times]),
                "still_running": server.poll() is None,
            }
            print(json.dumps(result, indent=1))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
