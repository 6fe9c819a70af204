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
from rich.markup import escape

from polybound.cli.pictures import draw, read_images
from polybound.cli.tables import note, show_table
from polybound.data import find_source, load, missing
from polybound.deploy import Plan, RemoteClassifier, plan_encryption, serve
from polybound.errors import PolyboundError
from polybound.models import EXAMPLES, example
from polybound.runs import LoadedModel, load_model

__all__ = ["run_classify", "run_encrypted_demo", "run_server", "show_plan"]


def _data_of_example(name: str) -> str:
    return "digits" if name.startswith("digits") else "fashion-mnist"


def _loaded(name: str) -> LoadedModel:
    """The network of a model file or a run folder."""
    if not Path(name).exists():
        raise PolyboundError(f"{name}: no model file, run folder or example (those are {', '.join(EXAMPLES)})")
    return load_model(Path(name))


def _plan(name: str, domain: tuple[float, float], tolerance: float) -> Plan:
    """The plan of a model file, a run folder or an example, with the class names of its data."""
    if name in EXAMPLES and not Path(name).exists():
        return plan_encryption(example(name), domain, find_source(_data_of_example(name)).class_names, tolerance)
    loaded = _loaded(name)
    names: tuple[str, ...] = ()
    if loaded.run is not None:
        about = loaded.run.spec().data
        try:
            # The names in a folder are known only after reading it.
            names = find_source(about.name).class_names or about.load("test").class_names
        except (PolyboundError, OSError) as error:
            note(f"classes are numbered, because the run's data cannot be loaded: {error}")
    # Clients refuse names that could disturb a terminal.
    names = tuple("".join(c for c in one if c.isprintable())[:100] for one in names)
    return plan_encryption(loaded.model, domain, names if len(names) == loaded.model.classes else None, tolerance)


def show_plan(name: str, domain: tuple[float, float], tolerance: float, as_json: bool) -> None:
    """Show a network's plan."""
    plan = _plan(name, domain, tolerance)
    facts: dict[str, Any] = {
        "ring": plan.ring,
        "bits of the moduli": list(plan.bits),
        "scales (bits)": {"pixels": plan.pixels, "weights": round(plan.weights, 2), "output": plan.output},
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
def _other_process(model: str, domain: tuple[float, float]) -> Iterator[str]:
    """A server in a process of its own, and its address."""
    command = [sys.executable, "-m", "polybound", "encrypt", "serve", model, "--port", "0"]
    command += ["--domain", *map(repr, domain)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            assert process.stdout is not None  # noqa: S101
            line = process.stdout.readline()
            if " on http://" not in line:
                raise PolyboundError("the server did not start")
            yield line.rpartition(" on ")[2].split(",")[0]
        finally:
            process.terminate()


def run_encrypted_demo(model: str | None, index: int, data_dir: Path | None) -> None:
    """Start a server, classify one image with it, and show what happened."""
    if model is None:
        model = "digits" if missing("fashion-mnist", data_dir) else "pn-4"
    if model in EXAMPLES and not Path(model).exists():
        data = load(_data_of_example(model), "test", data_dir=data_dir)
    else:
        run = _loaded(model).run
        if run is None:
            raise PolyboundError(f"{model}: a model file does not say which data it is for; a run folder does")
        data = run.spec().data.load("test", data_dir)
    if index >= len(data.x):
        raise PolyboundError(f"{data.name}: its test split has images 0 to {len(data.x) - 1}, not {index}")
    console = Console(highlight=False)
    image = data.x[index].double().numpy()
    with _other_process(model, data.domain) as url:
        console.print(f"[bold]server[/]  {escape(model)}, in a process of its own: {url}")
        if image.ndim > 1:
            print(draw(image, data.domain))
        with RemoteClassifier(url) as remote:
            remote.classify(image)  # sends the keys
            answer = remote.classify(image)
    size = image.size * 8
    console.print(f"[bold]client[/]  {remote.key_bytes / 1e6:.1f} MB of public keys, sent once")
    console.print(f"        an image of {size / 1e3:.1f} kB becomes {answer.sent / 1e3:.0f} kB, encrypted")
    label = data.class_names[int(data.y[index])]
    console.print(f"[bold]answer[/]  {escape(answer.name)} (label: {escape(label)})")
    console.print(f"        {answer.received / 1e3:.0f} kB, {answer.seconds * 1e3:.0f} ms, never decrypted on the way")
