"""The page in a real browser: moving over the map changes what is shown, names stay text, nothing is fetched."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import asdict, replace

import pytest
from browser import Browser
from waiting import PATIENCE

from lapae.runs.numbers import number
from lapae.runs.results import Record, Table
from lapae.view.report.page import REPORT, write_report
from lapae.view.web import asset

from .test_report import HOSTILE, QUICK, images, trained

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=3000"),
)
PROBE = """<script>
window.alert = () => { document.body.dataset.alerted = "yes"; };
window.onerror = (message) => { document.body.dataset.error = message; };
setTimeout(() => {
  const over = document.getElementById("over"), box = over.getBoundingClientRect();
  const byId = (id) => document.getElementById(id);
  const seen = () => byId("mean").toDataURL() + byId("deviation").toDataURL() + byId("total").textContent;
  const at = (u, v) => over.dispatchEvent(new PointerEvent("pointermove",
    { clientX: box.left + u * box.width, clientY: box.top + v * box.height }));
  at(0.5, 0.5); const first = seen();
  at(0.02, 0.02); const second = seen();
  at(0.5, 0.5);
  const fetched = performance.getEntriesByType("resource").filter((r) => !r.name.startsWith("data:"));
  Object.assign(document.body.dataset, { moved: first !== second, back: first === seen(),
    legend: document.querySelectorAll("#legend button").length, requests: fetched.length });
}, 500);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_moving_over_the_map_changes_the_picture(tmp_path):
    data = images()
    data = replace(data, space=replace(data.space, name=HOSTILE))  # a file's name, and above a class's
    run, model = trained(data, tmp_path)
    write_report(run, model, data, QUICK)
    page = tmp_path / "page.html"
    page.write_text((run / REPORT).read_text("utf-8").replace("</body>", PROBE))
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    body = re.search(r"<body[^>]*>", dom)
    assert body is not None
    expected = 'data-moved="true" data-back="true" data-legend="3" data-requests="0"'
    assert body.group() == f"<body {expected}>"  # and neither an error nor an alert


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_browser_writes_numbers_as_python_does(tmp_path):
    values = [0, -0.0, 1, 12.6, 999.96, 1234.5678, -98765.4321, 1e9, 2.5e12, 1.618e-8, -3e-5, 0.00012345, 0.1 + 0.2]
    cases = [(value, digits, scale) for value in values for digits in (2, 3, 4) for scale in (0, 1, 1e4, 1e-6)]
    page = tmp_path / "numbers.html"
    page.write_text(f"<meta charset=utf-8><script>{asset('numbers.js')}</script>")
    with Browser(tmp_path / "profile") as browser:
        browser.open(page.as_uri())
        found = browser.run(f"{json.dumps(cases)}.map(([v, d, s]) => readable(v, d, s))")
        assert browser.run("[null, NaN, Infinity].map((v) => readable(v))") == ["–", "–", "∞"]
    assert found == [number(float(value), digits, scale) for value, digits, scale in cases]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_numbers_of_a_task_are_in_sight_on_a_phone(tmp_path):
    data = images()
    run, model = trained(data, tmp_path)
    result = {"squared error of the whole reconstruction, of single samples": 0.0653}
    (run / "tasks").mkdir()
    table = Table(("", "value"), list(result.items()))
    run.write_json("tasks/mine.json", asdict(Record("mine", {}, result, [], None, table)))
    write_report(run, model, data, QUICK)
    with Browser(tmp_path / "profile") as browser:
        browser.open((run / REPORT).as_uri())
        size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        browser.until("document.readyState === 'complete'")
        right = browser.run("document.querySelector('td:last-child').getBoundingClientRect().right")
        assert browser.run("document.querySelector('td:last-child').textContent") == "0.0653"
        assert right <= browser.run("document.querySelector('.scroll').getBoundingClientRect().right")
