"""A page in the system's Chromium, driven by Playwright; no host name resolves in it."""

import json
import re
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND"]


class Browser:
    """One page at a time. `requests` has all addresses that the page asked for, `errors` what went wrong in it."""

    def __init__(self):
        sync_api = pytest.importorskip("playwright.sync_api")
        if CHROMIUM is None:
            pytest.skip("no Chromium")
        self.requests, self.errors, self.page = [], [], None
        self._playwright = sync_api.sync_playwright().start()
        self._chromium = self._playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

    def open(self, file, width=1300, height=1000, dark=False):
        """Open a file in a new window of this size, light or dark; a narrow one is a phone's."""
        if self.page is not None:
            self.page.context.close()
        self.requests.clear()
        self.errors.clear()
        phone, scheme = width < 600, "dark" if dark else "light"
        window = self._chromium.new_context(
            viewport={"width": width, "height": height}, is_mobile=phone, has_touch=phone, color_scheme=scheme
        )
        self.page = window.new_page()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        self._devtools = window.new_cdp_session(self.page)
        self.page.goto(f"file://{file}")

    def call(self, method, **parameters):
        """A command of the DevTools protocol, for what Playwright does not have."""
        return self._devtools.send(method, parameters)

    def run(self, expression):
        """The value of an expression in the page; promises are waited for.

        `page.evaluate` would need eval, which the policy of our pages forbids; the console's way in does not.
        """
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression):
        """Wait until an expression is true; a minute at most."""
        for _ in range(3000):
            if self.run(expression):
                return
            self.page.wait_for_timeout(20)
        raise AssertionError(f"never true: {expression}")

    def centre(self, selector):
        """The middle of an element, scrolled into view."""
        return self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )

    def click(self, selector):
        """Click the middle of an element with the mouse."""
        self.drag([self.centre(selector)])

    def drag(self, points):
        """Press the mouse at the first point, move along the others, release it at the last."""
        for i, point in enumerate(points):
            self.page.mouse.move(*point)
            if i == 0:
                self.page.mouse.down()
        self.page.mouse.up()

    def touch(self, points):
        """The same with a finger, for which Playwright knows taps only."""
        for i, (x, y) in enumerate(points):
            kind = "touchMove" if i else "touchStart"
            self.call("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, *keys):
        """Press keys one after the other, by their names."""
        for key in keys:
            self.page.keyboard.press("Space" if key == " " else key)

    def close(self):
        """End the browser."""
        self._chromium.close()
        self._playwright.stop()


def contrast(*colours):
    """How much two colours of a page stand out from each other, as the accessibility guidelines count it."""

    def light(colour):
        shares = [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) + 0.05

    dark, bright = sorted(map(light, colours))
    return bright / dark
