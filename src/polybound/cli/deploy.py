"""`polybound export`, `verify` and `encrypt`: ONNX and VNN-LIB, and encrypted images."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import polybound as pb
from polybound.atomic import write_atomically
from polybound.cli.commands import app, command, is_quiet, make_app, note, progress
from polybound.cli.networks import read_images
from polybound.cli.options import TOOLS, AsJson, DataDir, Images, Network, Radii, argument, option
from polybound.cli.tables import show_facts, show_table
from polybound.errors import PolyboundError, require, writable_file
from polybound.progress import Show


@command(
    app,
    "polybound export m.safetensors net.onnx",
    "polybound export runs/NAME --vnnlib --eps 0.02 --images 100 -o benchmark",
    panel=TOOLS,
    stopped="files that were written are whole",
)
def export(
    model: Network,
    out: Path | None = argument("The ONNX file.", "OUT.onnx", default=None),
    output: Path | None = option("The same; with --vnnlib the benchmark's folder.", "--output", "-o"),
    run: int | None = option("Only this run of a stack; without it, a file for each."),
    dataset: str | None = option("For class names and domain; by default the run's own."),
    bounds: bool = option("Prove Lipschitz bounds, for the metadata.", default=True),
    vnnlib: bool = option("A benchmark as VNN-COMP has them.", "--vnnlib", default=False),
    eps: Radii = None,
    images: Images = 100,
    correct: bool = option("Leave out images that are misclassified as they are.", "--correct-only", default=False),
    timeout: float = option("Seconds that its instances give a verifier.", default=60.0),
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a model as ONNX, or a benchmark of ONNX, VNN-LIB and instances.csv as VNN-COMP has them."""
    target = out or output
    if target is None or (out is not None and output is not None):
        raise PolyboundError("missing output path: polybound export MODEL OUT.onnx, or with --vnnlib -o FOLDER")
    if vnnlib and not eps:
        raise PolyboundError("--vnnlib needs a radius: --eps 0.02")
    if eps and not vnnlib:
        raise PolyboundError("--eps is for --vnnlib")
    found = pb.runs.load_model(model)
    network = found.model if run is None else found.model.run(run)
    if vnnlib and network.runs is not None:
        raise PolyboundError(f"{model} is a stack of {network.runs} runs: pass --run 0")
    data = None
    try:
        if vnnlib or dataset is not None or found.spec is not None:
            data = found.data("test", dataset, data_dir)
    except (PolyboundError, OSError) as error:
        if vnnlib or dataset is not None:
            raise
        note(f"without class names and domain, because the run's data cannot be loaded: {error}")
    options: dict[str, Any] = {"bounds": bounds}
    if data is not None:
        if data.classes != network.classes:
            raise PolyboundError(f"{data.name} has {data.classes} classes, the model {network.classes}")
        options |= {"class_names": data.class_names, "domain": data.domain, "scaling": data.scaling}
    if data is not None and vnnlib:
        x, y = data.x, data.y
        if correct:
            import torch

            kind = next(network.parameters()).dtype
            with torch.no_grad():
                right = torch.cat([network(part.to(kind)).argmax(1) for part in torch.split(x, 256)]) == y
            x, y = x[right], y[right]
        name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in found.name) or "network"
        options |= {"name": name, "timeout": timeout}
        files = pb.deploy.export_benchmark(network, target, x[:images], y[:images], eps=eps or [], **options)
    else:
        files = pb.deploy.to_onnx(network, target, **options)
    more = f" and {len(files) - 1} more files" if len(files) > 1 else ""
    print(json.dumps({"files": list(map(str, files))}, indent=2) if as_json else f"wrote {files[0]}{more}")


@command(
    app,
    "polybound verify net.onnx property.vnnlib --timeout 60",
    "polybound verify net.onnx property.vnnlib -o result.txt",
    panel=TOOLS,
)
def verify(
    network: Path = argument("A polynomial network.", "NET.onnx"),
    question: Path = argument("A box and conditions on the outputs.", "PROPERTY.vnnlib"),
    timeout: float = option("Seconds.", default=60.0),
    output: Path | None = option("Write the answer to this file as well.", "--output", "-o"),
    as_json: AsJson = False,
) -> None:
    """Answer a VNN-LIB 1.0 property: unsat, sat with a counterexample, timeout or unknown, as VNN-COMP prints them.

    Exit code 0 if it is decided, 1 if it is not, 2 for files that cannot be read.
    """
    if output is not None:
        writable_file(output)
    verdict = pb.deploy.verify(network, question, timeout=timeout)
    if output is not None:
        write_atomically(output, (verdict.text() + "\n").encode())
    print(json.dumps(verdict.as_dict(), indent=2) if as_json else verdict.text())
    if verdict.answer == "sat" and not verdict.replayed:
        note("the counterexample is one in exact arithmetic; onnxruntime did not confirm it in the file's precision")
    if verdict.answer in ("timeout", "unknown"):
        raise typer.Exit(1)


# `polybound encrypt`: serve a network, classify images encrypted, and a demo of both.


encrypt_app = make_app("encrypt", "Classify encrypted images: a client with the key, a server that cannot decrypt.")

Tolerance = Annotated[float, typer.Option(help="The largest error of a logit, over all possible images.")]
Domain = Annotated[
    tuple[float, float], typer.Option(metavar="LOW HIGH", help="The smallest and the largest value of a pixel.")
]


def _plan(given: str, domain: tuple[float, float], tolerance: float, data_dir: Path | None = None) -> pb.deploy.Plan:
    """The plan of a network, with the class names of its data, and errors at its images where they are there."""
    found = pb.runs.load_model(given)
    names: tuple[str, ...] = ()
    images = None
    if found.spec is not None:
        with suppress(PolyboundError, OSError):
            data = found.data(data_dir=data_dir)
            if data.domain == domain:
                images = data.x[:64].double().numpy()
        about = found.spec.data
        try:
            # The names in a folder are known only after reading it.
            names = pb.data.find_source(about.name).class_names or about.load("test").class_names
        except (PolyboundError, OSError) as error:
            note(f"classes are numbered, because the run's data cannot be loaded: {error}")
    # Clients refuse names that could disturb a terminal.
    names = tuple("".join(c for c in one if c.isprintable())[:100] for one in names)
    fitting = names if len(names) == found.model.classes else None
    return pb.deploy.plan_encryption(found.model, domain, fitting, tolerance, images=images)


@command(encrypt_app, "polybound encrypt plan pn-4", "polybound encrypt plan m.safetensors --json")
def plan(model: Network, tolerance: Tolerance = 1.0, domain: Domain = (-1.0, 1.0), as_json: AsJson = False) -> None:
    """Show how a network would be evaluated: ring, moduli, scales, ranges, time and error; refuse what does not fit."""
    facts = _plan(model, domain, tolerance).facts()
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        show_facts({name: f"{value:.4g}" if isinstance(value, float) else value for name, value in facts.items()})


@command(encrypt_app, "polybound encrypt serve pn-4 --port 8731", "polybound encrypt serve runs/NAME")
def serve(
    model: Network,
    port: int = option("0 takes a free one.", default=8731, min=0, max=65535),
    host: str = option("The address to listen on; by default only this machine's.", default="127.0.0.1"),
    clients: int = option("Number of clients whose keys are kept in memory.", default=16, min=1),
    data_dir: DataDir = None,
    tolerance: Tolerance = 1.0,
    domain: Domain = (-1.0, 1.0),
) -> None:
    """Answer encrypted requests with a network's encrypted logits, until interrupted."""
    plan, bar = _plan(model, domain, tolerance, data_dir), ExitStack()

    def ready(port: int) -> None:
        bar.close()
        print(f"polybound: serving {model} on http://{host}:{port}, logits within {plan.error:.2g}", flush=True)

    with suppress(KeyboardInterrupt), bar:
        step = bar.enter_context(progress("encoding the weights", plan.blocks + 1))
        pb.deploy.serve(plan, port, host, clients, ready, encoded=step)


@command(
    encrypt_app,
    "polybound encrypt classify fashion-mnist:0-9",
    "polybound encrypt classify --server http://127.0.0.1:8731 images.npz shoe.png",
)
def classify(
    images: list[str] = argument(
        "npy, npz or picture files; test images: DATASET:5, DATASET:0-9, folder:PATH:0-9.", "IMAGES..."
    ),
    server: str = option("The server's address.", default="http://127.0.0.1:8731"),
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Encrypt images, let a server classify them, and decrypt the answers. The secret key stays in this process."""
    records: list[dict[str, Any]] = []
    with pb.deploy.RemoteClassifier(server) as remote, progress("") as show:
        for name, image in read_images(images, remote.plan.shape, remote.plan.domain, data_dir):
            answer = _classified(remote, image, name, show)
            record = {"image": name, "class": answer.name, "logits": [round(float(v), 6) for v in answer.logits]}
            sizes = {"sent": answer.sent, "received": answer.received}
            records.append(record | sizes | {"seconds": round(answer.seconds, 4)})
    if as_json:
        print(json.dumps(records, indent=2))
        return
    rows = []
    for r in records:
        traffic = [f"{r[name] / 1e3:.0f} kB" for name in ("sent", "received")]
        rows.append([r["image"], r["class"], f"{max(r['logits']):.2f}", *traffic, f"{r['seconds']:.2f} s"])
    title = f"{server}: logits within {remote.plan.error:.2g}; keys, sent once: {remote.key_bytes / 1e6:.1f} MB"
    show_table(["image", "class", "logit", "sent", "received", "time"], rows, title=title)


@command(encrypt_app, "polybound encrypt demo", "polybound encrypt demo runs/NAME --index 7")
def demo(
    run: str | None = argument("A run folder, or an example: digits, pn-4, cifar10-polynet.", "RUN", default=None),
    index: int = option("Which test image.", default=0, min=0),
    data_dir: DataDir = None,
) -> None:
    """Start a server, and classify one test image with it, of the run's data.

    Without a run: Fashion-MNIST by the example pn-4 if the data are there, else the built-in digits.
    """
    require("tenseal", "encrypted", "encrypted inference")  # before another process is started
    if run is None:
        run = "digits" if pb.data.missing("fashion-mnist", data_dir) else "pn-4"
    found = pb.runs.load_model(run)
    if found.spec is None:
        raise PolyboundError(f"{run}: a model file does not say which data it is for; a run folder does")
    data = found.data(data_dir=data_dir)
    if index >= len(data.x):
        raise PolyboundError(f"{data.name}: its test split has images 0 to {len(data.x) - 1}, not {index}")
    console = Console(highlight=False)
    image = data.x[index].double().numpy()
    with _other_process(run, data.domain) as url:
        console.print(f"[bold]server[/]  {escape(run)}, in a process of its own: {url}")
        with pb.deploy.RemoteClassifier(url) as remote, progress("") as show:
            if remote.plan.blocks == 1:
                remote.classify(image)  # sends the keys
            answer = _classified(remote, image, f"{data.name}:{index}", show)
    size = image.size * 8
    console.print(f"[bold]client[/]  {remote.key_bytes / 1e6:.1f} MB of public keys, sent once")
    console.print(f"        an image of {size / 1e3:.1f} kB becomes {answer.sent / 1e3:.0f} kB, encrypted")
    label = data.class_names[int(data.y[index])]
    console.print(f"[bold]answer[/]  {escape(answer.name)} (label: {escape(label)})")
    console.print(f"        {answer.received / 1e3:.0f} kB, {answer.seconds * 1e3:.0f} ms, never decrypted on the way")


def _classified(remote: pb.deploy.RemoteClassifier, image: Any, name: str, show: Show) -> pb.deploy.Answer:
    """The answer for an image, with a bar of the blocks that are done."""
    blocks = remote.plan.blocks
    show(0, blocks, f"{name}: keys")
    return remote.classify(image, lambda done: show(done, blocks, f"{name}: {done} of {blocks} blocks done"))


@contextmanager
def _other_process(model: str, domain: tuple[float, float]) -> Iterator[str]:
    """A server in a process of its own, and its address."""
    words = [sys.executable, "-m", "polybound", "encrypt", "serve", model, "--port", "0"]
    words += ["--domain", *map(repr, domain), *["--quiet"] * is_quiet()]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            assert process.stdout is not None  # noqa: S101
            line = process.stdout.readline()
            if " on http://" not in line:
                raise PolyboundError("the server did not start")
            yield line.rpartition(" on ")[2].split(",")[0]
        finally:
            process.terminate()
