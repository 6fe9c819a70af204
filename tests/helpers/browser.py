"""A real browser for tests, driven over a pipe by the DevTools protocol; no name resolves in it."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest


class Browser:
    """One page of a headless Chromium. `requests` has all addresses it asked for, `errors` all that went wrong."""

    def __init__(self):
        program = shutil.which("chromium") or shutil.which("google-chrome")
        if program is None:
            pytest.skip("no Chromium")
        self.requests, self.errors = [], []
        self._folder = tempfile.mkdtemp()
        words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]
        words += ["--remote-debugging-pipe", f"--user-data-dir={self._folder}", "--no-first-run"]
        words += ["--disable-background-networking", "about:blank"]
        # High numbers, so that none of them is 3 or 4, where the browser looks for its pipes.
        (ours_in, theirs_out), (theirs_in, ours_out) = os.pipe(), os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (theirs_in, theirs_out)]
        null = os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
        actions += [(os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
        self._pid = os.posix_spawn(program, words, os.environ, file_actions=actions, setpgroup=0)
        for end in (theirs_in, theirs_out, *high, null):
            os.close(end)
        self._in, self._out, self._rest, self._number = ours_in, ours_out, b"", 0
        self._session = None
        target = next(t for t in self._call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def _message(self, deadline):
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self._in, 2**20) if ready else b""
            if not more:
                raise AssertionError("the browser is silent")
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        kind, about = message.get("method"), message.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif kind == "Runtime.exceptionThrown":
            self.errors.append(about["exceptionDetails"].get("exception", {}).get("description", str(about)))
        elif kind == "Log.entryAdded":
            self.errors.append(about["entry"]["text"])
        return message

    def _call(self, method, **params):
        self._number += 1
        call = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            call["sessionId"] = self._session
        os.write(self._out, json.dumps(call).encode() + b"\0")
        deadline = time.monotonic() + 120
        while True:
            message = self._message(deadline)
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    def open(self, file, width=1300, height=1000, dark=False):
        """Open a file in a window of a size, light or dark."""
        self.requests.clear()
        self.errors.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=f"file://{file}")
        self.wait("document.readyState === 'complete'")

    def run(self, expression):
        """The value of an expression in the page; promises are waited for."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression):
        """Wait until an expression is true."""
        deadline = time.monotonic() + 60
        while not self.run(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.02)

    def centre(self, selector):
        """Where an element is, scrolled into view."""
        return self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )

    def click(self, selector):
        """Click the middle of an element with the mouse."""
        self.drag([self.centre(selector)])

    def drag(self, points):
        """Press the mouse at the first point, move along the others, release it at the last."""
        for i, (x, y) in enumerate(points):
            kind = "mouseMoved" if i else "mousePressed"
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
        x, y = points[-1]
        self._call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)

    def touch(self, points):
        """The same with a finger."""
        for i, (x, y) in enumerate(points):
            self._call(
                "Input.dispatchTouchEvent", type="touchMove" if i else "touchStart", touchPoints=[{"x": x, "y": y}]
            )
        self._call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, *keys):
        """Press keys one after the other, by their names."""
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Backspace": 8, "End": 35}
        for key in keys:
            text = {"text": " "} if key == " " else {}
            about = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": codes.get(key, 32)}
            self._call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
            self._call("Input.dispatchKeyEvent", type="keyUp", **about)

    def picture(self, file):
        """A picture of the whole page."""
        found = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        Path(file).write_bytes(base64.b64decode(found["data"]))

    def close(self):
        """End the browser."""
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._folder, ignore_errors=True)
