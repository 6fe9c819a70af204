"""`polybound export` and `polybound verify`: ONNX and VNN-LIB."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from polybound.cli.commands import AsJson, command
from polybound.errors import PolyboundError, writable_file

__all__ = ["add_interchange"]


def add_interchange(app: typer.Typer) -> None:
    """Make the two commands known."""
    panel = "Other tools"
    command(
        app,
        "polybound export m.safetensors net.onnx",
        "polybound export runs/NAME --vnnlib --eps 0.02 --images 100 -o benchmark",
        panel=panel,
        stopped="files that were written are whole",
    )(export)
    command(
        app,
        "polybound verify net.onnx property.vnnlib --timeout 60",
        "polybound verify net.onnx property.vnnlib -o result.txt",
        panel=panel,
    )(verify)


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A run folder, or a model's file.")],
    out: Annotated[Path | None, typer.Argument(metavar="OUT.onnx", help="The ONNX file.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The same; with --vnnlib the benchmark's folder.")
    ] = None,
    run: Annotated[int | None, typer.Option(help="Only this run of a stack; without it, a file for each.")] = None,
    dataset: Annotated[str | None, typer.Option(help="For class names and domain; by default the run's own.")] = None,
    scaling: Annotated[
        str | None,
        typer.Option(
            metavar="FACTOR,OFFSET", help="What makes inputs of raw values; by default what the data set says."
        ),
    ] = None,
    bounds: Annotated[bool, typer.Option(help="Prove Lipschitz bounds, for the metadata.")] = True,
    vnnlib: Annotated[bool, typer.Option("--vnnlib", help="A benchmark as VNN-COMP has them.")] = False,
    eps: Annotated[list[float] | None, typer.Option(help="Radius of its l_inf balls; repeatable.")] = None,
    images: Annotated[int, typer.Option("-n", "--images", min=1, help="How many test images it has.")] = 100,
    correct: Annotated[
        bool, typer.Option("--correct-only", help="Leave out images that are misclassified as they are.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that its instances give a verifier.")] = 60.0,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lies.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a model as ONNX, or a benchmark of ONNX, VNN-LIB and instances.csv as VNN-COMP has them."""
    from polybound.cli.exports import Exported, export_model, export_properties

    if (out is None) == (output is None):
        raise PolyboundError("where to? polybound export MODEL OUT.onnx, or with --vnnlib -o FOLDER")
    target = out or output or Path()
    options: dict[str, Any] = {"scaling": _pair(scaling), "bounds": bounds}
    about = Exported(model, run, dataset, data_dir)
    if vnnlib and not eps:
        raise PolyboundError("--vnnlib needs a radius: --eps 0.02")
    if vnnlib:
        files = export_properties(about, target, eps or [], images, correct, timeout, options)
    elif eps:
        raise PolyboundError("--eps is for --vnnlib")
    else:
        files = export_model(about, target, options)
    if as_json:
        print(json.dumps({"files": [str(file) for file in files]}, indent=2))
    else:
        print(f"wrote {files[0]}" + (f" and {len(files) - 1} more files" if len(files) > 1 else ""))


def _pair(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        factor, offset = (float(part) for part in text.split(","))
    except ValueError:
        raise PolyboundError(f"--scaling takes two numbers, FACTOR,OFFSET, not {text!r}") from None
    return factor, offset


def verify(
    network: Annotated[Path, typer.Argument(metavar="NET.onnx", help="A polynomial network.")],
    question: Annotated[Path, typer.Argument(metavar="PROPERTY.vnnlib", help="A box and conditions on the outputs.")],
    timeout: Annotated[float, typer.Option(help="Seconds.")] = 60.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the answer to this file as well.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Answer a VNN-LIB 1.0 property: unsat, sat with a counterexample, timeout or unknown, as VNN-COMP prints them.

    Exit code 0 if it is decided, 1 if it is not, 2 for files that cannot be read.
    """
    from polybound.atomic import write_atomically
    from polybound.cli.tables import note
    from polybound.deploy import verify as decide

    if output is not None:
        writable_file(output)
    verdict = decide(network, question, timeout=timeout)
    if output is not None:
        write_atomically(output, (verdict.text() + "\n").encode())
    print(json.dumps(verdict.as_dict(), indent=2) if as_json else verdict.text())
    if verdict.answer == "sat" and not verdict.replayed:
        note("the counterexample is one in exact arithmetic; onnxruntime did not confirm it in the file's precision")
    if verdict.answer in ("timeout", "unknown"):
        raise typer.Exit(1)
