"""The page in a real browser: moving over the map changes what is shown, names stay text, nothing is fetched."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, Browser
from PIL import Image

from lapae import LaplacianAutoencoder
from lapae.data.deliveries import deliveries
from lapae.runs.numbers import number
from lapae.runs.results import Record, Table
from lapae.view.report.page import REPORT, write_report
from lapae.view.web import asset

from .test_report import HOSTILE, QUICK, images, trained

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
DRAWN = """["mean", "deviation"].every((id) => {
  const canvas = document.getElementById(id);
  return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean);
})"""
MOVE = """((u, v) => {
  const byId = (id) => document.getElementById(id), over = byId("over"), box = over.getBoundingClientRect();
  const at = { clientX: box.left + u * box.width, clientY: box.top + v * box.height };
  over.dispatchEvent(new PointerEvent("pointermove", at));
  return byId("mean").toDataURL() + byId("deviation").toDataURL() + byId("total").textContent;
})"""


def test_moving_over_the_map_changes_the_picture(tmp_path):
    data = images()
    data = replace(data, space=replace(data.space, name=HOSTILE))  # a file's name, and above a class's
    run, model = trained(data, tmp_path)
    write_report(run, model, data, QUICK)
    page = (run / REPORT).as_uri()
    with Browser(tmp_path / "profile") as browser:
        browser.open(page)
        browser.until(DRAWN)
        first = browser.run(f"{MOVE}(0.5, 0.5)")
        assert browser.run(f"{MOVE}(0.02, 0.02)") != first
        assert browser.run(f"{MOVE}(0.5, 0.5)") == first
        assert browser.run("document.querySelectorAll('#legend button').length") == 3
        assert browser.problems() == []  # neither an error nor an alert
        assert {url for url in browser.requests() if not url.startswith("data:")} == {page}


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


OVERLAPS = """[...document.querySelectorAll('.feature')].filter((row) => {
  const [a, b] = ['.name', '.value'].map((part) => row.querySelector(part).getBoundingClientRect());
  return Math.min(a.right, b.right) > Math.max(a.left, b.left) + 1
    && Math.min(a.bottom, b.bottom) > Math.max(a.top, b.top) + 2;
}).length"""


TEXTS_THAT_OVERLAP = """[...document.querySelectorAll('.chart svg')].flatMap((svg) => {
  const boxes = [...svg.querySelectorAll('text')].map((text) => text.getBoundingClientRect());
  return boxes.filter((a, i) => boxes.slice(i + 1).some((b) => Math.min(a.right, b.right) > Math.max(a.left, b.left) + 1
    && Math.min(a.bottom, b.bottom) > Math.max(a.top, b.top) + 3));
}).length"""


def test_the_panel_of_images_has_room_on_a_phone(tmp_path):
    run, model = trained(images(), tmp_path)
    write_report(run, model, images(), QUICK)
    with Browser(tmp_path / "profile") as browser:
        browser.open((run / REPORT).as_uri())
        browser.until("document.readyState === 'complete'")
        for width in (1280, 390):
            browser.screenshot(tmp_path / "shot.png", width=width)
            for part, least in (("#mean", 100), ("#deviation", 100), (".bar", 200)):
                assert browser.run(f"document.querySelector('{part}').getBoundingClientRect().width") > least
            assert browser.run(TEXTS_THAT_OVERLAP) == 0, width


def test_a_report_looks_right_on_a_desk_and_on_a_phone_in_light_and_in_dark(tmp_path):
    """With dates and long words: nothing overlaps, nothing is wider than the page, the map keeps its size."""
    known = deliveries(200, seed=0)
    known["expected_day_of_the_arrival_at_the_customer"] = np.datetime64("2024-01-01") + known.index.to_numpy() % 300
    known["zone"] = known["zone"].astype(str) + " of the metropolitan area"
    model = LaplacianAutoencoder(epochs=3, random_state=0).fit(known)
    page = model.report(known.sample(60, random_state=0), path=tmp_path / "report.html")
    tones = {}
    with Browser(tmp_path / "profile") as browser:
        browser.open(Path(page).as_uri())
        for width in (1280, 390):
            for dark in (False, True):
                shot = tmp_path / f"{width}-{dark}.png"
                browser.screenshot(shot, width=width, dark=dark)
                with Image.open(shot) as image:
                    assert image.width == width
                    tones[width, dark] = float(np.asarray(image.convert("L")).mean())
                assert browser.run("document.documentElement.scrollWidth") <= width
                assert browser.run("document.querySelectorAll('.feature').length") > 10
                assert browser.run(OVERLAPS) == 0, width
                assert browser.run("document.querySelector('canvas#over').getBoundingClientRect().width") > 250
        assert browser.run("document.querySelector('header .verdict').textContent").startswith("No more unusual")
    assert min(tones[1280, False], tones[390, False]) > 180
    assert max(tones[1280, True], tones[390, True]) < 80
