"""The explorer's page in a real browser, with a real mouse: moving, picking, dropping files in, painting."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from browser import CHROMIUM, Browser
from narrow import sure
from serving import HOSTILE, explorer, rows, served
from test_uploads import npy, png, square
from trained import in_splits
from waiting import PATIENCE

from lapae.data import Split
from lapae.runs import Run
from lapae.space import Space
from lapae.view.explore.requests import BadRequest
from lapae.view.report.page import write_report
from lapae.view.sizes import ReportSizes

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
READY = "document.body && document.body.dataset.moves > 1 && !document.getElementById('looked').hidden"
SEEN = "document.getElementById('mean').toDataURL() + document.getElementById('total').textContent"
FEATURES = "document.getElementById('features').innerText"


def text(browser: Browser, name: str) -> str:
    return browser.run(f"document.getElementById('{name}').textContent")


def choose(browser: Browser, selector: str, value: str) -> None:
    """Give an input or a select a value, and say so as a person does."""
    browser.run(
        f"((e) => {{ e.value = '{value}'; for (const kind of ['input', 'change']) e.dispatchEvent(new Event(kind)); }})"
        f"(document.querySelector('{selector}'))"
    )


def moves(browser: Browser) -> int:
    return int(browser.run("document.body.dataset.moves"))


def move(browser: Browser, u: float, v: float) -> None:
    """Move over the map and wait until it has answered."""
    before = moves(browser)
    browser.mouse("mouseMoved", *browser.inside("#over", u, v))
    browser.until(f"document.body.dataset.moves > {before}")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def page(browser, image_server):
    browser.events.clear()
    browser.open(image_server.url)
    browser.until(READY)
    yield browser
    assert browser.problems() == []
    assert all(url.startswith((image_server.url, "data:")) for url in browser.requests())


@pytest.fixture
def row_page(browser, row_server):
    browser.events.clear()
    browser.open(row_server.url)
    browser.until(READY)
    yield browser
    assert browser.problems() == []


def test_moving_changes_the_picture(page):
    move(page, 0.5, 0.5)
    first = page.run(SEEN)
    move(page, 0.05, 0.1)
    assert page.run(SEEN) != first
    move(page, 0.5, 0.5)
    assert page.run(SEEN) == first
    page.run("document.getElementById('over').focus()")
    before = moves(page)
    page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowLeft")
    page.until(f"document.body.dataset.moves > {before}")
    assert page.run(SEEN) != first


def test_pressing_a_dot_and_picking_show_a_sample(page):
    assert text(page, "title") == "row 0, labelled <img src=x onerror=alert(1)>"
    assert text(page, "note") == "test 0"
    assert text(page, "p").startswith("p = 0.")
    assert "normal samples that training has not seen" in text(page, "words")
    assert "±" in text(page, "code")
    page.run("document.getElementById('next').click()")
    page.until("document.getElementById('note').textContent === 'test 1'")
    about = page.run("ask('opening')")
    across, up = about["axes"]
    x, y = about["points"][5]
    u, v = (x - across["low"]) / (across["high"] - across["low"]), (up["high"] - y) / (up["high"] - up["low"])
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        page.mouse(kind, *page.inside("#over", u, v))
    chosen = f"train {about['index'][5]}"
    page.until(f"document.getElementById('note').textContent === '{chosen}'")
    choose(page, "#search", "3")
    page.until("document.getElementById('note').textContent === 'train 3'")
    choose(page, "#search", "99999")
    page.until("document.getElementById('message').textContent.includes('no sample \\'99999\\'')")
    page.run("document.getElementById('over').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter")
    page.until(f"document.getElementById('note').textContent === '{chosen}'")


def test_zoom_pan_and_the_sample_under_the_pointer(page):
    about = page.run("ask('opening')")
    (across, up), (x, y) = about["axes"][:2], about["points"][5]
    u, v = (x - across["low"]) / (across["high"] - across["low"]), (up["high"] - y) / (up["high"] - up["low"])
    move(page, u, v)
    assert text(page, "hover").startswith(f"{about['ids'][5]}, ")
    assert page.run("document.querySelector('#hover canvas').width") == 8
    place, before = text(page, "place"), page.run("document.getElementById('heat').toDataURL()")
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=0, y=0, deltaX=0, deltaY=0)
    at = page.inside("#over", u, v)
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=at[0], y=at[1], deltaX=0, deltaY=-600)
    page.until("!document.getElementById('zoom-reset').hidden")
    assert text(page, "place") == place  # zoomed about the pointer
    zoomed = page.run("document.getElementById('heat').toDataURL()")
    assert zoomed != before
    page.mouse("mousePressed", *page.inside("#over", 0.5, 0.5))
    for i in range(1, 6):
        page.mouse("mouseMoved", *page.inside("#over", 0.5 + i / 20, 0.5), down=True)
    page.mouse("mouseReleased", *page.inside("#over", 0.75, 0.5))
    page.until(f"document.getElementById('heat').toDataURL() !== {json.dumps(zoomed)}")
    page.run("document.getElementById('zoom-reset').click()")
    page.until("document.getElementById('zoom-reset').hidden")
    assert page.run("document.getElementById('heat').toDataURL()") == before


def at(page, i: int) -> tuple[float, float]:
    """Place of a dot on the map, from 0 to 1."""
    about = page.run("ask('opening')")
    (across, up), (x, y) = about["axes"][:2], about["points"][i][:2]
    return (x - across["low"]) / (across["high"] - across["low"]), (up["high"] - y) / (up["high"] - up["low"])


def press(page, u: float, v: float) -> None:
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        page.mouse(kind, *page.inside("#over", u, v))


def key(page, name: str) -> None:
    page.call("Input.dispatchKeyEvent", type="keyDown", key=name)


def test_the_shade_may_be_the_volume_element(page):
    page.until("document.body.dataset.shade === 'deviation' && document.getElementById('compare').textContent")
    before, gauge = page.run("document.getElementById('heat').toDataURL()"), text(page, "compare")
    choose(page, "#shade", "volume")
    page.until("document.body.dataset.shade === 'volume'")
    assert page.run("document.getElementById('heat').toDataURL()") != before
    assert text(page, "shade-name") == "volume element here"
    page.until("Number(document.getElementById('total').textContent) > 0")
    assert page.run(
        "document.getElementById('about-deviation').hidden && !document.getElementById('about-volume').hidden"
    )
    choose(page, "#shade", "deviation")
    page.until("document.body.dataset.shade === 'deviation'")
    assert page.run("document.getElementById('heat').toDataURL()") == before
    page.until(f"document.getElementById('compare').textContent === {json.dumps(gauge)}")


def test_a_path_with_the_mouse_and_with_the_keyboard(page):
    note = text(page, "note")
    page.run("document.getElementById('path').click()")
    assert text(page, "path-text").startswith("Press where the path begins")
    press(page, *at(page, 5))
    assert text(page, "path-text").startswith("Press where it ends")
    press(page, 0.02, 0.97)
    page.until("document.body.dataset.paths === '1'")
    found = page.run("ask('path', {axes: [0, 1], anchor: null, ends: [{point: 5}, {point: 6}]})")
    assert found["length"] <= found["straight"]
    told = text(page, "path-text")
    assert told.startswith("Distance ")
    assert "straight line" in told
    assert page.run("document.querySelectorAll('#stops canvas').length") == 7
    assert text(page, "note") == note  # a press while a path is measured picks no sample
    page.run("document.getElementById('over').focus()")
    key(page, "Escape")
    assert page.run("document.getElementById('along').hidden && !document.querySelector('#stops canvas')")
    key(page, "p")
    assert page.run("document.getElementById('path').getAttribute('aria-pressed')") == "true"
    key(page, "Enter")
    for _ in range(5):
        key(page, "ArrowRight")
    key(page, "Enter")
    page.until("document.body.dataset.paths === '2'")
    key(page, "Escape")
    key(page, "Enter")  # picks a sample again
    page.until(f"document.getElementById('note').textContent !== {json.dumps(note)}")


def test_a_path_that_cannot_be_measured_has_a_message(browser, of_images, monkeypatch):
    def failing(*arguments):
        raise BadRequest("no way")

    monkeypatch.setattr(of_images, "path", failing)
    with served(of_images) as server:
        browser.events.clear()
        browser.open(server.url)
        browser.until(READY)
        browser.run("document.getElementById('path').click()")
        for i in (3, 4):
            press(browser, *at(browser, i))
        browser.until("document.getElementById('message').textContent === 'no way'")
        browser.until("document.getElementById('along').hidden")


def test_a_path_through_rows(row_page):
    row_page.run("document.getElementById('path').click()")
    for i in (3, 4):
        press(row_page, *at(row_page, i))
    row_page.until("document.body.dataset.paths === '1'")
    assert row_page.run("document.querySelectorAll('#stops tr').length") == 5
    assert row_page.run("document.querySelectorAll('#stops tr:first-child td').length") == 8
    choose(row_page, "#axis-x", "2")  # on other axes it is the same path
    row_page.until("document.body.dataset.shade === 'deviation'")
    assert text(row_page, "path-text").startswith("Distance ")


def test_an_address_names_a_sample(browser, image_server):
    browser.open("about:blank")
    browser.open(f"{image_server.url}#validation/2")
    browser.until(READY)
    assert text(browser, "note") == "validation 2"
    browser.run("location.hash = '#train/4'")
    browser.until("document.getElementById('note').textContent === 'train 4'")
    for address, told in (
        ("train/99999", "There is no train 99999 among these samples. This link belongs to other data"),
        ("given/1", "There is no given 1 among these samples. This link belongs to other data"),
        (
            "train/1/another%20run",
            f"This link belongs to the run “another run”, and this explorer shows “{HOSTILE}”",
        ),
        ("train/1/%", "This link belongs to the run “%”, and"),
    ):
        browser.run(f"location.hash = '#{address}'")
        browser.until(f"document.getElementById('message').textContent.startsWith('{told}')")
        assert text(browser, "note") == "train 4"  # no other sample in its place
    assert browser.problems() == []


def test_a_page_that_goes_while_it_is_asked_is_asked_again(browser):
    """Of the tests' own tool: on a busy machine a question meets a page that is just going."""
    browser.open("data:text/html,<a href='about:blank?two'>go</a>")
    browser.run("setTimeout(() => document.querySelector('a').click(), 50); 0")
    assert browser.until("new Promise((done) => setTimeout(() => done(location.href === 'about:blank?two'), 300))")


def test_a_click_in_the_report_opens_the_sample(browser, tmp_path):
    made = explorer(rows(), tmp_path)
    write_report(Run(sure(made.model.path)), made.model, rows(), ReportSizes(n_samples=4, points=20, examples=3))
    with served(made, name="run") as server:
        browser.events.clear()
        browser.open(server.url)
        browser.until(READY)
        browser.run("document.getElementById('report').click()")
        browser.until(
            "location.pathname.endsWith('/report') && document.querySelectorAll('#unusual a.id').length === 3"
        )
        browser.until("document.readyState === 'complete'")
        browser.until("document.getElementById('total').textContent")  # its own script works
        asked = "fetch('api/opening').then(() => 'answered', () => 'refused')"
        assert browser.run(asked) == "refused"  # and can ask nothing
        problems = browser.problems()
        assert problems
        assert all("api/opening" in problem for problem in problems)
        browser.events.clear()
        link = browser.run("document.querySelectorAll('#unusual a.id')[1].getAttribute('href')")
        name = browser.run("document.querySelectorAll('#unusual a.id')[1].textContent")
        for kind in ("mousePressed", "mouseReleased"):
            browser.mouse(kind, *browser.inside("#unusual .case:nth-child(2) a.id", 0.5, 0.5))
        browser.until(READY)
        assert browser.run("location.href") == f"{server.url}{link[2:]}"
        assert text(browser, "note") == "{} {}".format(*link[3:].split("/")[:2])
        assert text(browser, "title") == name
        assert browser.problems() == []


def test_a_click_in_the_file_of_a_report_opens_the_sample(browser, tmp_path):
    made = explorer(rows(), tmp_path)
    write_report(Run(sure(made.model.path)), made.model, rows(), ReportSizes(n_samples=4, points=20, examples=3))
    with served(made, name="run") as server:
        browser.open(server.url)  # a browser that has opened the explorer needs no token from then on
        browser.until(READY)
        page = tmp_path / "report.html"  # as if the explorer listened where it does unless told otherwise
        there = f":{server.server_port}/#"
        page.write_text((sure(made.model.path) / "report.html").read_text("utf-8").replace(":8765/#", there))
        browser.open(page.as_uri())
        browser.until("document.readyState === 'complete'")
        link = browser.run("document.querySelector('#unusual a.id').href")
        for kind in ("mousePressed", "mouseReleased"):
            browser.mouse(kind, *browser.inside("#unusual a.id", 0.5, 0.5))
        browser.attach(link)
        browser.until(READY)
        assert text(browser, "note") == "{} {}".format(*link.partition("#")[2].split("/")[:2])


def test_map_and_sample_are_side_by_side(page):
    size = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.call("Emulation.setDeviceMetricsOverride", **size)
    boxes = page.run(
        "['#over', '#p', '#input', '#blame'].map((s) => { const b = document.querySelector(s).getBoundingClientRect();"
        " return [b.left, b.right, b.top + scrollY, b.bottom + scrollY]; })"
    )
    page.call("Emulation.clearDeviceMetricsOverride")
    (_, right, _, bottom), *sample = boxes
    assert bottom < 900
    assert all(left > right and low < 900 for left, _, _, low in sample)


def test_an_upload_gives_a_percentile_and_a_bad_one_a_message(page, tmp_path):
    file = tmp_path / f"{HOSTILE.replace('/', '')}.png"
    file.write_bytes(png(square()))
    page.choose_file("#file", file)
    page.until("document.getElementById('title').textContent.endsWith('.png')")
    assert text(page, "title") == file.name  # the whole name, as text
    assert text(page, "p").startswith("p = ")
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    page.choose_file("#file", bad)
    page.until("!document.getElementById('message').hidden")
    assert "cannot be read as an image" in text(page, "message")
    assert text(page, "title") == file.name  # what was there stays
    large = tmp_path / "large.npy"
    large.write_bytes(b"\0" * (9 * 2**20))
    page.choose_file("#file", large)
    page.until("document.getElementById('message').textContent.includes('9.0 MB: expected at most 8')")
    page.run("document.getElementById('next').click()")
    page.until("document.getElementById('message').hidden")


def test_painting_gives_completions(page):
    assert page.run("document.getElementById('completed').hidden")
    page.mouse("mousePressed", *page.inside("#input", 0.3, 0.3))
    for i in range(5):
        page.mouse("mouseMoved", *page.inside("#input", 0.3 + i / 10, 0.35), down=True)
    page.mouse("mouseReleased", *page.inside("#input", 0.7, 0.35))
    page.until("!document.getElementById('completed').hidden")
    assert page.run("document.querySelectorAll('#completions canvas').length") == 8
    first = page.run("document.querySelectorAll('#completions canvas')[2].toDataURL()")
    page.run("document.getElementById('others').click()")
    page.until(f"document.querySelectorAll('#completions canvas')[2].toDataURL() !== '{first}'")
    page.run("document.getElementById('restore').click()")
    assert page.run("document.getElementById('completed').hidden")


def test_hostile_names_stay_text(page):
    assert text(page, "name") == HOSTILE
    assert text(page, "data") == f"{HOSTILE},"
    assert page.run("document.querySelectorAll('img').length") == 0
    labels = page.run("[...document.querySelectorAll('#legend button')].map((b) => b.textContent)")
    assert labels == ["a", "b", HOSTILE]


def test_rows_in_three_dimensions(row_page, tmp_path):
    page = row_page
    assert page.run("document.querySelectorAll('#table .feature').length") == 6
    assert page.run("document.querySelectorAll('#table .name')[2].textContent") == HOSTILE
    move(page, 0.5, 0.5)
    first = page.run(FEATURES)
    assert "±" in first
    choose(page, "#axis-y", "2")
    page.until(f"document.getElementById('features').innerText !== {first!r}")
    before = moves(page)
    choose(page, "#anchor", "sample")
    page.until(f"document.body.dataset.moves > {before}")
    choose(page, "#table .feature:nth-child(2) input", "")
    page.until("document.querySelectorAll('#table .value')[1].textContent.includes('filled in')")
    assert page.run("document.querySelectorAll('#table .track')[1].querySelectorAll('s').length") == 6
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(f"{i},100,100,100,100,100" for i in range(95, 98)))
    page.choose_file("#file", file)
    page.until("document.getElementById('note').textContent === 'row 1 of 3'")
    page.run("document.getElementById('row-next').click()")
    page.until("document.getElementById('note').textContent === 'row 2 of 3'")
    assert page.run("document.querySelectorAll('#table input')[0].value") == "96"
    array = tmp_path / "wrong.npy"
    array.write_bytes(npy(np.zeros((2, 7))))
    page.choose_file("#file", array)
    page.until(
        "document.getElementById('message').textContent.includes('shape (7,), the model takes data of shape (6,)')"
    )


def test_an_answer_about_a_sample_that_was_left_is_not_shown(browser, tmp_path):
    go_on = threading.Event()
    with served(explorer(rows(), tmp_path)) as server:
        look = server.routes.questions["look"]
        server.routes.questions["look"] = lambda body: look(body if go_on.wait(PATIENCE) else b"")
        browser.events.clear()
        browser.open(server.url)
        browser.until(READY)
        choose(browser, "#table .feature:nth-child(2) input", "5000")
        browser.run("document.getElementById('next').click()")
        browser.until("document.getElementById('note').textContent === 'test 1'")
        told = text(browser, "p"), text(browser, "words"), text(browser, "code")
        go_on.set()
        browser.until("performance.getEntriesByType('resource').some((e) => e.name.endsWith('/look') && e.responseEnd)")
        browser.run("new Promise((done) => setTimeout(done, 200))")
        assert (text(browser, "p"), text(browser, "words"), text(browser, "code")) == told
        assert browser.problems() == []


def test_a_window_is_shown_and_hidden_a_channel_at_a_time(browser, tmp_path):
    table = rows()
    windows = [Split(np.repeat(np.asarray(part.x)[:, :, None], 2, 2), None) for part in (table.train, table.test)]
    space = Space("array", (6, 2), offset=100.0, scale=10.0)
    data = in_splits(space, windows[0], windows[1], windows[1])
    with served(explorer(data, tmp_path)) as server:  # 6 steps of 2 channels
        browser.events.clear()
        browser.open(server.url)
        browser.until(READY)
        assert "channel 0" in text(browser, "features")
        assert "channel 1" in text(browser, "features")
        browser.mouse("mousePressed", *browser.inside("#chart", 0.01, 0.8))
        browser.mouse("mouseMoved", *browser.inside("#chart", 0.41, 0.8), down=True)
        browser.mouse("mouseReleased", *browser.inside("#chart", 0.41, 0.8))
        browser.until("!document.getElementById('others').disabled")
        sent = [e["params"]["request"] for e in browser.events if e.get("method") == "Network.requestWillBeSent"]
        asked = [json.loads(request["postData"]) for request in sent if request["url"].endswith("/complete")]
        hidden = [i for i, value in enumerate(asked[-1]["values"]) if value is None]
        assert hidden == [1, 3, 5]  # steps 0 to 2 of channel 1 alone
        assert browser.problems() == []
