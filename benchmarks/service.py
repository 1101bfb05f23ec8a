"""What the example service bears: requests per second and latencies, every answer compared with that of the detector.

python benchmarks/service.py
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from lapae_runtime import Detector

ROOT = Path(__file__).parents[1]
PORT = 8765
TRAIN = """
import numpy as np, pandas as pd
from lapae import LaplacianAutoencoder
rng = np.random.default_rng(0)
x = rng.normal(size=(4000, 5)) @ rng.normal(size=(5, 20)) + 0.3 * rng.normal(size=(4000, 20))
x = pd.DataFrame(x, columns=[f"c{i}" for i in range(20)])
x["c19"] = np.where(x["c19"] > 0, "high", "low")
LaplacianAutoencoder(random_state=0, device="cpu").fit(x).export("model.onnx")
x[:1000].to_json("rows.json", orient="records")
"""


def ask(connection: http.client.HTTPConnection, body: bytes) -> tuple[float, dict]:
    """Send one request; return the seconds it took, and the answer."""
    start = time.perf_counter()
    connection.request("POST", "/score", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    data = answer.read()
    assert answer.status == 200, data
    return time.perf_counter() - start, json.loads(data)


def load(rows: list, expected: list, clients: int, size: int, reasons: int, seconds: float) -> str:
    """Return a line of the table: `clients` threads that send `size` rows each time."""
    taken: list[float] = []
    wrong: list[str] = []
    stop = time.perf_counter() + seconds

    def client(number: int) -> None:
        rng, connection = np.random.default_rng(number), http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
        while time.perf_counter() < stop:
            at = int(rng.integers(len(rows) - size + 1))
            body = json.dumps({"rows": rows[at : at + size], "reasons": reasons}).encode()
            spent, answer = ask(connection, body)
            taken.append(spent)
            for got, want in zip(answer["rows"], expected[at : at + size], strict=True):
                if got["outlier"] != want["outlier"] or abs(got["p_value"] - want["p_value"]) > 1e-6:
                    wrong.append(f"{got} {want}")

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    p50, p99 = (1000 * np.quantile(taken, q) for q in (0.5, 0.99))
    line = f"{clients} | {size} | {reasons} | {len(taken) / seconds:.0f} | {size * len(taken) / seconds:.0f}"
    return f"| {line} | {p50:.1f} | {p99:.1f} | {len(wrong)} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", TRAIN], cwd=folder, check=True, stderr=subprocess.DEVNULL)
        rows = json.loads((Path(folder) / "rows.json").read_text())
        start = time.perf_counter()
        expected = Detector.load(Path(folder) / "model.onnx").score(rows).to_json()
        print(f"load and score 1,000 rows: {time.perf_counter() - start:.2f} s")
        env = {**os.environ, "LAPAE_MODEL": str(Path(folder) / "model.onnx")}
        words = ["-m", "uvicorn", "--app-dir", "examples", "service:app", "--port", str(PORT), "--log-level", "warning"]
        start = time.perf_counter()
        server = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=env)
        try:
            while True:
                try:
                    ask(http.client.HTTPConnection("127.0.0.1", PORT), json.dumps({"rows": rows[:1]}).encode())
                    break
                except ConnectionRefusedError:
                    time.sleep(0.02)
            print(f"start of the service to its first answer: {time.perf_counter() - start:.2f} s")
            print("| clients | rows | reasons | requests/s | rows/s | median ms | 99 % ms | wrong |\n|" + "---|" * 8)
            for clients, size, reasons in [(1, 1, 0), (1, 1, 2), (8, 1, 0), (8, 1, 2), (4, 100, 0), (4, 100, 2)]:
                print(load(rows, expected, clients, size, reasons, 8.0), flush=True)
            status = Path(f"/proc/{server.pid}/status").read_text()
            print(next(line for line in status.splitlines() if line.startswith("VmHWM")))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
