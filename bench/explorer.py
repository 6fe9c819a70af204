"""The explorer's time for a frame while one draws: CPU time of the page's own thread, from a headless Chromium.

    python bench/explorer.py [FRAMES]

In every frame the pen moves over the pad of a page with two PN-4 on Fashion-MNIST, with PGD. A frame of 60 in a second
has 16.7 ms. CPU time does not depend on what else the machine does; frames a second do, and are shown beside it.
"""

import sys
import tempfile
from pathlib import Path

import polybound as pb
from polybound.report import build_explorer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers.browser import Browser

# A pen that wanders over the pad, one move a frame, in circles of several sizes.
DRAW = """new Promise((done) => {
  const pad = document.getElementById('pad'), box = pad.getBoundingClientRect(), frames = %d, move = (kind, i) => {
    const angle = i / 9, size = 0.1 + 0.3 * ((i / 97) %% 1);
    const [x, y] = [0.5 + size * Math.cos(angle), 0.5 + size * Math.sin(angle)];
    const at = {clientX: box.left + box.width * x, clientY: box.top + box.height * y};
    pad.dispatchEvent(new PointerEvent(kind, {pointerId: 1, ...at}));
  };
  pad.setPointerCapture = () => {};
  let i = 0;
  const start = performance.now(), step = () => {
    if (i === frames) { move('pointerup', i); done(performance.now() - start); return; }
    move(i ? 'pointermove' : 'pointerdown', i);
    i += 1;
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""

SLIDE = """new Promise((done) => {
  const eps = document.getElementById('eps'), frames = %d;
  let i = 0;
  const start = performance.now(), step = () => {
    if (i === frames) { done(performance.now() - start); return; }
    eps.value = eps.max * (0.5 + 0.4 * Math.sin(i / 7));
    eps.dispatchEvent(new Event('input'));
    i += 1;
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""


def metrics(browser):
    """Seconds that the page's thread has spent so far: in scripts, in layout, in all."""
    found = {one["name"]: one["value"] for one in browser.call("Performance.getMetrics")["metrics"]}
    return {name: found[f"{name}Duration"] for name in ("Script", "Layout", "RecalcStyle", "Task")}


def measure(browser, code, frames):
    browser.run(code % 20)  # until the code is compiled
    before = metrics(browser)
    wall = browser.run(code % frames)
    after = metrics(browser)
    shown = {name: 1e3 * (after[name] - before[name]) / frames for name in before}
    return shown | {"frames a second": 1e3 * frames / wall}


def main():
    frames = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    networks = {"plain": pb.example("pn-4"), "projected": pb.example("pn-4-bound-1")}
    data = pb.data.load("fashion-mnist", "test")
    with tempfile.TemporaryDirectory() as folder:
        page = build_explorer(networks, data, Path(folder) / "e.html", images=20, budget=0.0)
        browser = Browser()
        browser.open(page)
        browser.call("Performance.enable", timeDomain="threadTicks")
        browser.wait("window.explorer && Number(document.documentElement.dataset.shown) > 0")
        for what, code in (("drawing", DRAW), ("sliding eps", SLIDE)):
            found = measure(browser, code, frames)
            print(f"{what}: " + ", ".join(f"{name} {value:.1f}" for name, value in found.items()), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
