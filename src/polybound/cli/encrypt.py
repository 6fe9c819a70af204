"""`polybound encrypt`: serve a network, classify images encrypted, and a demo of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from polybound.cli.commands import AsJson, command, make_app

__all__ = ["encrypt_app"]

encrypt_app = make_app("encrypt", "Classify encrypted images: a client with the key, a server that cannot decrypt.")

DataDir = Annotated[Path | None, typer.Option(help="Where the data lies.")]
Network = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model file, a run folder, or an example: digits, pn-4, pn-4-bound-1.")
]
Tolerance = Annotated[float, typer.Option(help="The largest error of a logit, over all possible images.")]

Domain = Annotated[
    tuple[float, float], typer.Option(metavar="LOW HIGH", help="The smallest and the largest value of a pixel.")
]


@command(encrypt_app, "polybound encrypt plan pn-4", "polybound encrypt plan m.safetensors --json")
def plan(model: Network, tolerance: Tolerance = 1.0, domain: Domain = (-1.0, 1.0), as_json: AsJson = False) -> None:
    """Show how a network would be evaluated: ring, moduli, scales, ranges and error; refuse what does not fit."""
    from polybound.cli.encrypted import show_plan

    show_plan(model, domain, tolerance, as_json)


@command(encrypt_app, "polybound encrypt serve pn-4 --port 8731", "polybound encrypt serve runs/NAME")
def serve(
    model: Network,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8731,
    host: Annotated[str, typer.Option(help="The address to listen on; by default only this machine's.")] = "127.0.0.1",
    clients: Annotated[int, typer.Option(min=1, help="How many clients' keys are kept in memory.")] = 16,
    tolerance: Tolerance = 1.0,
    domain: Domain = (-1.0, 1.0),
) -> None:
    """Answer encrypted requests with a network's encrypted logits, until interrupted."""
    from polybound.cli.encrypted import run_server

    run_server(model, port, host, clients, domain, tolerance)


@command(
    encrypt_app,
    "polybound encrypt classify fashion-mnist:0-9",
    "polybound encrypt classify --server http://127.0.0.1:8731 images.npz shoe.png",
)
def classify(
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES...", help="npy, npz or picture files; test images: DATASET:5, DATASET:0-9, folder:PATH:0-9."
        ),
    ],
    server: Annotated[str, typer.Option(help="The server's address.")] = "http://127.0.0.1:8731",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Encrypt images, let a server classify them, and decrypt the answers. The secret key stays in this process."""
    from polybound.cli.encrypted import run_classify

    answers = run_classify(server, images, data_dir, shown=not as_json)
    if as_json:
        print(json.dumps(answers, indent=2))


@command(encrypt_app, "polybound encrypt demo", "polybound encrypt demo runs/NAME --index 7")
def demo(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="A run folder, or an example: digits, pn-4.")] = None,
    index: Annotated[int, typer.Option(min=0, help="Which test image.")] = 0,
    data_dir: DataDir = None,
) -> None:
    """Start a server, and classify one test image with it, of the run's data.

    Without a run: Fashion-MNIST by the example pn-4 if the data are there, else the built-in digits.
    """
    from polybound.cli.encrypted import run_encrypted_demo

    run_encrypted_demo(run, index, data_dir)
