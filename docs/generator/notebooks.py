"""The tutorials: notebooks as pages, with the outputs that are stored in them."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ANSI = re.compile(r"\x1b\[[\d;]*m")


def write_notebooks(source: Path, target: Path) -> None:
    """Write a page for each notebook of a folder, and a folder of its pictures; the notebook itself goes along."""
    for file in sorted(source.glob("*.ipynb")):
        notebook = json.loads(file.read_text(encoding="utf-8"))
        (target / file.name).write_bytes(file.read_bytes())
        lines = [f"[This page is a notebook]({file.name}), which the tests run.", ""]
        for number, cell in enumerate(notebook["cells"]):
            text = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                lines += [text, ""]
                continue
            lines += ["```python", text, "```", ""]
            for each, output in enumerate(cell["outputs"]):
                lines += output_lines(output, target, f"{file.stem}-{number}-{each}")
        heading, _, rest = "\n".join(lines[2:]).partition("\n")
        (target / f"{file.stem}.md").write_text(f"{heading}\n\n{lines[0]}\n{rest}", encoding="utf-8")


def output_lines(output: dict[str, Any], folder: Path, name: str) -> list[str]:
    """What a cell left behind: a picture, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        (folder / f"{name}.png").write_bytes(base64.b64decode(data["image/png"]))
        return [f"![What the cell above draws]({name}.png)", ""]
    text = "".join(data["text/plain"] if data else output["text"])
    if output["output_type"] == "stream" and output["name"] == "stderr":
        return []
    return ['<div class="output" markdown>', "", "```text", ANSI.sub("", text).rstrip("\n"), "```", "", "</div>", ""]


def run_notebook(file: Path, folder: Path) -> Any:
    """The notebook with fresh outputs, run by a kernel of its own in a folder; raises if a cell does."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(file, as_version=4)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=600,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return notebook


def store_outputs(file: Path) -> None:
    """Run a notebook and keep its outputs in it, without what differs from run to run."""
    import nbformat

    with TemporaryDirectory() as folder:
        notebook = run_notebook(file, Path(folder))
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = joined([output for output in cell.outputs if output.get("name") != "stderr"])
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    nbformat.write(notebook, file)


def joined(outputs: list[Any]) -> list[Any]:
    """Outputs with pieces of one stream put together: where a kernel cuts them is chance."""
    found: list[Any] = []
    for output in outputs:
        last = found[-1] if found else {}
        if output["output_type"] == "stream" and last.get("name") == output["name"]:
            last["text"] += output["text"]
        else:
            found.append(output)
    return found


if __name__ == "__main__":
    for each in sorted((Path(__file__).parents[1] / "tutorials").glob("*.ipynb")):
        print(each.name)
        store_outputs(each)
