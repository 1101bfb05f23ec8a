"""The page in a real browser: moving over the map changes what is shown, names stay text, nothing is fetched."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from lapae.report.page import REPORT, write_report

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
    data = replace(images(), name=HOSTILE)  # a file's name, and above a class's
    run, model = trained(data, tmp_path)
    write_report(run, model, data, QUICK)
    page = tmp_path / "page.html"
    page.write_text((run / REPORT).read_text().replace("</body>", PROBE))
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    body = re.search(r"<body[^>]*>", dom)
    assert body is not None
    expected = 'data-moved="true" data-back="true" data-legend="3" data-requests="0"'
    assert body.group() == f"<body {expected}>"  # and neither an error nor an alert
