"""Chromium, driven through a pair of pipes with the DevTools protocol: no driver and no package is needed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from waiting import PATIENCE, until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
)
GONE = ("Inspected target navigated", "Execution context was destroyed", "Cannot find default execution context")


class Navigated(RuntimeError):
    """The page went away while it was asked."""


class Browser:
    """One page of a headless browser; a context manager."""

    def __init__(self, folder: Path, width: int = 1100, height: int = 900) -> None:
        assert CHROMIUM is not None
        there, self._out = os.pipe()
        self._in, back = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (there, back)]

        def arrange() -> None:  # the browser reads from 3 and writes to 4
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank"]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        # A folder of sockets that it leaves behind; their names must be short.
        self._sockets = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        its = {**os.environ, "TMPDIR": self._sockets.name}
        self.process = subprocess.Popen(command, preexec_fn=arrange, pass_fds=(3, 4), env=its, **quiet)
        for end in (there, back, *ends):
            os.close(end)
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self.session: str | None = None
        self.attach("")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        os.close(self._out)
        os.close(self._in)
        self._sockets.cleanup()

    def call(self, name: str, **params: Any) -> dict[str, Any]:
        """A method of the protocol; events that come before its answer are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": name, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") != self._number:
                self.events.append(found)
                continue
            if "error" in found:
                gone = found["error"]["message"].startswith(GONE)
                raise (Navigated if gone else RuntimeError)(f"{name}: {found['error']}")
            return found["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._in, 2**16)
            if not part:
                raise RuntimeError("the browser ended")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def attach(self, url: str) -> None:
        """Go on in the tab whose address begins so."""

        def found() -> str | None:
            targets = self.call("Target.getTargets")["targetInfos"]
            return next((t["targetId"] for t in targets if t["type"] == "page" and t["url"].startswith(url)), None)

        self.session = None  # that of the browser itself
        page = until(found, f"a tab at {url}")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "DOM", "Network", "Log"):
            self.call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Go to a page; when this returns it is loaded, its scripts have run, and the one that was there is gone."""
        self.run("window.before = true")
        self.call("Page.navigate", url=url)
        self.until("!window.before && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression (or of its promise) in the page."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, script: str, seconds: float = PATIENCE) -> Any:
        """Wait for an expression to be true, in this page or in one that takes its place."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(Navigated):
                if found := self.run(script):
                    return found
            time.sleep(0.02)
        raise TimeoutError(f"{script} did not come true: {self.problems()}")

    def choose_file(self, selector: str, path: Path) -> None:
        """Put a file into an input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)

    def mouse(self, kind: str, x: float, y: float, *, down: bool = False) -> None:
        """A real event of the mouse: mouseMoved, mousePressed or mouseReleased."""
        button = "left" if down or kind != "mouseMoved" else "none"
        pressed = {"button": button, "buttons": int(down or kind == "mousePressed"), "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def inside(self, selector: str, u: float, v: float) -> tuple[float, float]:
        """The place of a point of an element, scrolled into view, in the window."""
        box = self.run(
            f"((e) => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            f" return [b.left, b.top, b.width, b.height]; }})(document.querySelector({json.dumps(selector)}))"
        )
        return box[0] + u * box[2], box[1] + v * box[3]

    def problems(self) -> list[str]:
        """Errors of scripts, dialogs, and what the page was refused (by its own rules, too), so far."""
        self.run("0")
        out = []
        for event in self.events:
            name, params = event.get("method"), event.get("params", {})
            if name == "Runtime.exceptionThrown":
                out.append(str(params["exceptionDetails"].get("exception", {}).get("description")))
            elif name == "Page.javascriptDialogOpening":
                out.append(f"dialog: {params['message']}")
            elif name == "Log.entryAdded" and params["entry"]["source"] in ("security", "javascript"):
                out.append(params["entry"]["text"])
        return out

    def requests(self) -> list[str]:
        """Addresses that the page asked for, so far."""
        self.run("0")
        sent = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in sent]

    def screenshot(self, path: Path, *, width: int, height: int | None = None, dark: bool = False) -> None:
        """A picture of the whole page, or of its upper part."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        tall = height or self.run("document.documentElement.scrollHeight")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=tall, deviceScaleFactor=1, mobile=width < 500
        )
        self.run("new Promise((done) => setTimeout(done, 600))")
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
