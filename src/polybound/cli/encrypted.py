"""What `polybound encrypt` does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from polybound.cli.pictures import draw, read_images
from polybound.cli.tables import show_table
from polybound.deploy import Plan, RemoteClassifier, plan_encryption, serve
from polybound.errors import PolyboundError
from polybound.models import EXAMPLES, PolynomialNetwork, example

__all__ = ["run_classify", "run_encrypted_demo", "run_server", "show_plan"]


def _plan(name: str, domain: tuple[float, float], tolerance: float) -> Plan:
    """The plan of a model file, a run folder or an example, with what is known of its data."""
    if name in EXAMPLES and not Path(name).exists():
        return plan_encryption(
            example(name), domain, _class_names("digits" if name.startswith("digits") else "fashion-mnist"), tolerance
        )
    from polybound.runs import load_subject

    if not Path(name).exists():
        raise PolyboundError(f"{name}: no model file, run folder or example (those are {', '.join(EXAMPLES)})")
    loaded = load_subject(Path(name))
    names = None if loaded.run is None else _class_names(loaded.run.spec().data.name)
    model: PolynomialNetwork = loaded.model
    return plan_encryption(model, domain, names if names and len(names) == model.classes else None, tolerance)


def _class_names(dataset: str) -> tuple[str, ...] | None:
    from polybound.data import find_source

    with suppress(PolyboundError):  # the data need not be here
        return find_source(dataset).class_names or None
    return None


def show_plan(name: str, domain: tuple[float, float], tolerance: float, as_json: bool) -> None:
    """Show a network's plan."""
    plan = _plan(name, domain, tolerance)
    p = plan.parameters
    facts: dict[str, Any] = {
        "ring": p.ring,
        "bits of the moduli": list(p.bits),
        "scales (bits)": {"pixels": p.pixels, "weights": round(p.weights, 2), "output": p.output},
        "ciphertexts of an image": plan.layout.uploads,
        "keys for rotations": len(plan.layout.steps) + 1,
        "largest factor": float(plan.ranges.factors.max()),
        "largest product": float(plan.ranges.products.max()),
        "largest logit": float(plan.ranges.logits.max()),
        "largest error": plan.error,
    }
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        from polybound.cli.tables import show_facts

        show_facts({name: f"{value:.4g}" if isinstance(value, float) else value for name, value in facts.items()})


def run_server(name: str, port: int, host: str, clients: int, domain: tuple[float, float], tolerance: float) -> None:
    """Serve a network until interrupted."""
    plan = _plan(name, domain, tolerance)

    def ready(port: int) -> None:
        print(f"polybound: serving {name} on http://{host}:{port}, logits within {plan.error:.2g}", flush=True)

    with suppress(KeyboardInterrupt):
        serve(plan, port, host, clients, ready)


def run_classify(url: str, given: list[str], data_dir: Path | None, shown: bool) -> list[dict[str, Any]]:
    """Classify images by a server; the answers as records, also shown as a table."""
    records: list[dict[str, Any]] = []
    with RemoteClassifier(url) as remote:
        for name, image in read_images(given, remote.plan.shape, remote.plan.domain, data_dir):
            answer = remote.classify(image)
            records.append(
                {
                    "image": name,
                    "class": answer.name,
                    "logits": [round(float(value), 6) for value in answer.logits],
                    "sent": answer.sent,
                    "received": answer.received,
                    "seconds": round(answer.seconds, 4),
                }
            )
    if shown:
        rows = [
            [r["image"], r["class"], f"{max(r['logits']):.2f}", f"{r['sent'] / 1e3:.0f} kB",
             f"{r['received'] / 1e3:.0f} kB", f"{r['seconds']:.2f} s"]
            for r in records
        ]  # fmt: skip
        title = f"{url}: logits within {remote.plan.error:.2g}; keys, sent once: {remote.key_bytes / 1e6:.1f} MB"
        show_table(["image", "class", "logit", "sent", "received", "time"], rows, title=title)
    return records


@contextmanager
def _other_process(model: str) -> Iterator[str]:
    """A server in a process of its own, and its address."""
    command = [sys.executable, "-m", "polybound", "encrypt", "serve", model, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    try:
        assert process.stdout is not None  # noqa: S101
        line = process.stdout.readline()
        if " on http://" not in line:
            raise PolyboundError("the server did not start")
        yield line.split(" on ")[1].split(",")[0]
    finally:
        process.terminate()
        process.wait()


def run_encrypted_demo(index: int, data_dir: Path | None) -> None:
    """Start a server, classify one image with it, and show what happened."""
    from polybound.data import load, missing

    console = Console(highlight=False)
    if missing("fashion-mnist", data_dir):
        model, data = "digits", load("digits", "test")
    else:
        model, data = "pn-4", load("fashion-mnist", "test", data_dir=data_dir)
    if index >= len(data.x):
        raise PolyboundError(f"{data.name}: its test split has images 0 to {len(data.x) - 1}, not {index}")
    image = data.x[index].double().numpy()
    with _other_process(model) as url:
        console.print(f"[bold]server[/]  {model}, in a process of its own: {url}")
        print(draw(image, data.domain))
        with RemoteClassifier(url) as remote:
            remote.classify(image)  # sends the keys
            answer = remote.classify(image)
    size = image.size * 8
    console.print(f"[bold]client[/]  {remote.key_bytes / 1e6:.1f} MB of public keys, sent once")
    console.print(f"        an image of {size / 1e3:.1f} kB becomes {answer.sent / 1e3:.0f} kB, encrypted")
    console.print(f"[bold]answer[/]  {answer.name} (label: {data.class_names[int(data.y[index])]})")
    console.print(f"        {answer.received / 1e3:.0f} kB, {answer.seconds * 1e3:.0f} ms, never decrypted on the way")
