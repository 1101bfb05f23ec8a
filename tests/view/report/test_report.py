"""The page, its parts, and what hostile names and damaged files do to it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from trained import in_splits

from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.data import Data, Split
from lapae.errors import RunError
from lapae.fit import fit
from lapae.predict.decode import decode, encode_mean
from lapae.runs import Run
from lapae.runs.numbers import number
from lapae.runs.results import Result, Table, file_name, load_results, save_result
from lapae.space import Column, Space
from lapae.view.display import choose_display
from lapae.view.latent_map import latent_space, plane
from lapae.view.named_splits import NamedSplits
from lapae.view.pictures import shrink, tiled
from lapae.view.report.chart import line_chart, ticks
from lapae.view.report.page import MOST_BYTES, REPORT, report_html, write_report
from lapae.view.sizes import ReportSizes

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'
QUICK = ReportSizes(n_samples=4, points=40, examples=2)


def images(n: int = 90) -> Data:
    x = np.random.default_rng(0).random((n, 1, 8, 8)).astype(np.float32)
    y = np.arange(n) % 3
    cut = (slice(0, 60), slice(60, 75), slice(75, n))
    space = Space("image", (1, 8, 8), name="squares", label_names=("a", "b", HOSTILE))
    return in_splits(space, *(Split(x[c], y[c]) for c in cut))


def trained(data: Data, tmp_path, method: str = "online", latent_dim: int = 2):
    config = Config(
        model=ModelConfig(hidden=(8,), latent_dim=latent_dim),
        method=MethodConfig.taking(method, members=2),
        train=TrainConfig(epochs=2, verbose=False, device="cpu"),
    )
    run = Run.create(tmp_path / "run")
    return run, fit(config, data, run=run)


def payload(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="latent">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found.group(1))


def test_page_stands_alone_and_escapes_names(tmp_path):
    data = images()
    data = replace(data, space=replace(data.space, name=HOSTILE))
    run, model = trained(data, tmp_path)
    size = write_report(run, model, data, QUICK)
    page = (run / REPORT).read_text("utf-8")
    assert size == len(page.encode()) < MOST_BYTES
    assert HOSTILE not in page
    assert "<img src=x" not in page
    assert "default-src 'none'" in page
    assert not re.search(r"""src=["'](?!data:)""", page)  # nothing is fetched
    explorer = r'http://127\.0\.0\.1:8765/#(?:train|validation|calibration|test)/\d+/run"'
    assert not re.search(rf"""href=["'](?!#\w|{explorer})""", page)  # links lead into the page, or into the explorer
    assert len(re.findall("https?://", page)) == len(re.findall(explorer, page)) == 2
    for anchor in re.findall(r'href="#([\w-]+)"', page):
        assert f'id="{anchor}"' in page
    latent = payload(page)
    assert latent["labelings"][0]["names"][2] == HOSTILE  # whole, as text
    assert len(latent["points"]) == 40
    assert latent["spread"]


def test_page_says_how_to_explore_its_data(tmp_path):
    data = images()
    run, model = trained(data, tmp_path)
    splits = NamedSplits.given(np.asarray(data.test.x))
    page = report_html(model, splits, QUICK, run, file=Path("my images"))
    assert f"start <code>lapae explore {run.path} --data &#39;my images&#39;</code>" in page
    assert re.search(r'8765/#given/\d+/run"', page)
    assert "start <code>model.explore(X)</code>" in report_html(model, splits, QUICK)


@pytest.mark.parametrize(("latent_dim", "maps"), [(1, 1), (2, 1), (3, 3), (6, 3)])
def test_maps_by_latent_size(tmp_path, latent_dim, maps):
    data = images()
    run, model = trained(data, tmp_path, latent_dim=latent_dim)
    write_report(run, model, data, QUICK)
    page = (run / REPORT).read_text("utf-8")
    assert len(payload(page)["planes"]) == maps
    assert ('id="axis-x"' in page) == (latent_dim > 2)


@pytest.mark.parametrize("method", ["ae", "vae", "ensemble"])
def test_other_methods(tmp_path, method):
    data = images()
    run, model = trained(data, tmp_path, method)
    write_report(run, model, data, QUICK)
    assert payload((run / REPORT).read_text("utf-8"))["spread"] == (method == "vae")


def test_table_shows_bars_in_the_units_of_the_data(tmp_path, table):
    columns = tuple(map(Column, (HOSTILE, *"bcdef")))
    space = replace(table.space, offset=np.full(6, 100.0), scale=np.full(6, 10.0), columns=columns)
    data = replace(table, space=space)
    parts = (replace(split, x=np.asarray(split.x) * 10 + 100) for split in (data.train, data.valid, data.test))
    data = replace(data, **dict(zip(("train", "valid", "test"), parts, strict=True)))
    run, model = trained(data, tmp_path)
    write_report(run, model, data, QUICK)
    page = (run / REPORT).read_text("utf-8")
    latent = payload(page)
    assert latent["view"]["kind"] == "bars"
    assert HOSTILE not in page
    means = np.array(latent["planes"][0]["mean"])
    assert means.shape == (32 * 32, 6)
    assert 50 < means.mean() < 150


def test_missing_values_and_long_arrays(tmp_path, table):
    x = np.tile(np.asarray(table.train.x), (1, 10))
    data = in_splits(Space("array", x.shape[1:]), *[Split(x, None)] * 3)
    run, model = trained(data, tmp_path)
    holes = x.copy()
    holes[:, 3] = np.nan
    split = Split(holes, None)
    write_report(run, model, replace(data, train=split, valid=split, test=split), QUICK)
    assert payload((run / REPORT).read_text("utf-8"))["view"]["kind"] == "lines"


def test_a_series_whose_channels_have_names(tmp_path):
    steps = np.sin(np.arange(400.0)[:, None] / 9) + np.random.default_rng(0).normal(size=(400, 2))
    data = Data.of(pd.DataFrame(steps, columns=["heat", "load"]), window=8)
    run, model = trained(data, tmp_path)
    write_report(run, model, data, QUICK)
    page = (run / REPORT).read_text("utf-8")
    assert "heat, step" in page
    assert "the range of its data: heat, load" in page
    assert payload(page)["view"]["channels"] == ["heat", "load"]
    assert "channel 0" not in page.replace("reconstruction, channel 0", "")


@pytest.mark.parametrize(("n_channels", "shown"), [(2, 2), (9, 6)])
def test_a_window_is_shown_a_strip_a_channel(tmp_path, n_channels, shown):
    """(T, C) laid flat would zigzag between the channels, whose units may differ."""
    steps = np.arange(7.0)
    one = steps[:, None] + 1000 * np.arange(n_channels)
    x = one + np.random.default_rng(0).random((40, 1, 1))
    split = Split(x.astype(np.float32), None)
    space = Space("array", x.shape[1:], offset=1000.0, scale=1000.0, name="windows")
    data = in_splits(space, split, split, split)
    run, model = trained(data, tmp_path)
    z = torch.from_numpy(space.convert(x.astype(np.float32)))
    display = choose_display(model, z, encode_mean(model.method, z).numpy())
    channels = [f"channel {c}" for c in range(shown)]
    assert (display.kind, display.channels) == ("lines", tuple(channels))
    flat = one.reshape(-1)[display.features].reshape(shown, -1)
    np.testing.assert_array_equal(flat, one.T[:shown])
    of = display.ranges[display.features]
    assert of[0].tolist() == of[6].tolist() != of[7].tolist()
    write_report(run, model, data, QUICK)
    page = (run / REPORT).read_text("utf-8")
    assert payload(page)["view"]["channels"] == channels
    assert f'aria-label="input and reconstruction, channel {shown - 1}"' in page
    assert ("(the first 6 of 9)" in page) == (n_channels == 9)


def test_decode_is_mean_and_deviation_over_networks(tmp_path):
    _, model = trained(images(), tmp_path)
    z = torch.randn(5, 2)
    found = decode(model.method, z, n_samples=12, batch_size=2)
    from lapae.predict.mc import draw_seeds

    with torch.no_grad():
        each = model.method.draw(draw_seeds(0, 12)).decode(z[None]).loc
    torch.testing.assert_close(found.mean, each.mean(0))
    torch.testing.assert_close(found.deviation, each.std(0))
    one_pass, many = decode(model.method, z, n_samples=None), decode(model.method, z, n_samples=400)
    torch.testing.assert_close(one_pass.mean, model.method.draw_mean().decode(z[None]).loc[0])
    torch.testing.assert_close(one_pass.deviation, many.deviation, rtol=0.3, atol=0.02)
    with pytest.raises(ValueError, match="needs a posterior"):
        decode(trained(images(), tmp_path / "ae", "ae")[1].method, z, n_samples=None)


def test_grid_cells_lie_where_the_map_shows_them(tmp_path):
    data = images()
    _, model = trained(data, tmp_path, latent_dim=3)
    x = model.tensor(np.asarray(data.train.x[:60]))
    space = latent_space(model.method, x)
    codes = space.grid((0, 2), 4)
    points = (codes - space.origin) @ space.directions.T
    assert points[0, 0] < points[3, 0]  # to the right
    assert points[0, 2] > points[-1, 2]  # downwards
    np.testing.assert_allclose(points[:, 1], 0, atol=1e-9)  # in the plane
    np.testing.assert_allclose(space.codes, encode_mean(model.method, x).numpy(), rtol=1e-6)
    assert plane(model.method, space, (0, 2), side=4, n_samples=3).total.shape == (16,)


class Fake(Result):
    def __init__(self, names):
        self.names = names

    def to_dict(self):
        return {"a": 1.5, "b": float("nan")}

    def figures(self):
        return {name: Figure(figsize=(1, 1)) for name in self.names}

    def table(self):
        return Table(("", "value"), list(self.to_dict().items()))


def test_results_are_kept_and_old_pictures_go(tmp_path):
    run = Run.create(tmp_path / "run")
    first = save_result(run, "mine", {}, Fake(["../../x", "../../x ", "b"]))
    assert first.figures == ["x.svg", "x-2.svg", "b.svg"]
    assert sorted(p.name for p in tmp_path.rglob("*.svg")) == ["b.svg", "x-2.svg", "x.svg"]
    save_result(run, "mine", {}, Fake(["b"]))
    assert [p.name for p in (run / "figures").iterdir()] == ["b.svg"]
    (found,) = load_results(run)
    assert found.result == {"a": 1.5, "b": None}
    assert found.table.texts() == [("a", "1.5"), ("b", "–")]
    assert str(found.table) == "   value\na  1.5\nb  –"
    path = run / "tasks" / "mine.json"
    path.write_text(path.read_text("utf-8").replace("1.5", "1.6", 1))
    with pytest.raises(RunError, match="does not match its digest"):
        load_results(run)


@pytest.mark.parametrize("content", ["{", "[]", '{"task": "ood"}'])
def test_damaged_results_are_named(tmp_path, content):
    run = Run.create(tmp_path / "run")
    (run / "tasks").mkdir()
    (run / "tasks" / "x.json").write_text(content)
    with pytest.raises(RunError, match=r"x\.json is damaged"):
        load_results(run)


@pytest.mark.parametrize(
    "change",
    [
        {"figures": ["../a"]},
        {"table": {"columns": ["a"], "rows": [[1, 2]]}},
        {"table": 3},
        {"result": []},
        {"more": 1},
    ],
    ids=str,
)
def test_results_that_are_none_are_named(tmp_path, change):
    """Whole, and with a digest that agrees."""
    run = Run.create(tmp_path / "run")
    (run / "tasks").mkdir()
    table = {"columns": [], "rows": []}
    good = {"task": "x", "options": {}, "result": {}, "figures": [], "seconds": None, "table": table}
    run.write_json("tasks/x.json", good)
    assert [record.task for record in load_results(run)] == ["x"]
    run.write_json("tasks/x.json", good | change)
    with pytest.raises(RunError, match=r"x\.json is not a task result"):
        load_results(run)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (float("-inf"), "-∞"),
        (0.0, "0"),
        (-0.0, "0"),
        (11650.4, "11,650"),
        (1234567, "1,234,567"),
        (0.0653, "0.0653"),
        (0.93, "0.93"),
        (9.99996, "10"),
        (-12.3456, "-12.35"),
        (1.618e-8, "1.618·10⁻⁸"),
        (2e12, "2·10¹²"),
        ("<b>", "<b>"),
        (True, "True"),
    ],
)
def test_numbers_people_can_read(value, text):
    assert number(value) == text


def test_numbers_beside_a_scale():
    assert number(1.618e-8, scale=1.0) == "0"
    assert number(-0.00001, scale=2.0) == "0"
    assert number(0.12345, scale=10) == "0.12"
    assert number(0.0, scale=1e-8) == "0"


def test_file_names_chart_and_sprites():
    assert file_name("/etc/passwd") == "etc_passwd"
    assert file_name("..") == "figure"
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert line_chart([1], {"a": [None]}) is None
    chart = line_chart(list(range(1, 31)), {"a": [1000.0, *[5.0 - i / 10 for i in range(28)], float("nan")]}, mark=3)
    assert chart is not None
    assert chart.clipped
    assert max(float(text) for _, text in chart.frame.y_ticks) <= 6
    tiles = np.arange(4)[:, None, None] * np.ones((4, 2, 3), dtype=int)
    assert tiled(tiles, 2)[:, [0, 3]].tolist() == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert shrink(torch.ones(2, 3, 64, 32)).shape == (2, 3, 32, 16)
