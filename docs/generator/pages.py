"""The pages of the site, as Markdown in one folder, from which it is built."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from generator import notebooks, reference, results, theorems

EXPLORER = "<!-- explorer -->"
WORKER = "assets/javascripts/workers/search.*.min.js"


def write_pages(root: Path, target: Path) -> None:
    """Write all pages.

    Args:
        root: the project.
        target: the folder for the pages, which is made anew.
    """
    shutil.rmtree(target, ignore_errors=True)
    ignored = shutil.ignore_patterns("generator", "*.ipynb", "__pycache__", ".ipynb_checkpoints")
    shutil.copytree(root / "docs", target, ignore=ignored)
    for name in ("CONTRIBUTING", "CHANGELOG"):
        (target / f"{name.lower()}.md").write_text((root / f"{name}.md").read_text(encoding="utf-8"), encoding="utf-8")
    for page in target.rglob("*.md"):
        text = included(page.read_text(encoding="utf-8"), root)
        page.write_text(relinked(text, page.relative_to(target).parent.as_posix()), encoding="utf-8")
    notebooks.write_notebooks(root / "docs" / "tutorials", target / "tutorials")
    theorems.write_theorems(target / "ideas" / "theorems.md")
    reference.write_reference(target / "reference")
    results.write_results(root / "docs" / "results" / "scores.csv", target / "results")
    write_explorer(target / "play.html", target / "explorer.md")
    write_worker(target / "theme" / "instead-of-iframe-worker.js")


def included(text: str, root: Path) -> str:
    """A page with `<!-- include FILE # HEADING -->` replaced by that section of a file of the project."""

    def part(found: re.Match[str]) -> str:
        return section((root / found.group(1)).read_text(encoding="utf-8"), found.group(2))

    return re.sub(r"<!-- include (\S+) # (.+?) -->", part, text)


def section(text: str, heading: str) -> str:
    """What stands under a heading of the third level, up to the next heading."""
    (found,) = re.findall(rf"^### {re.escape(heading)}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    # What CONTRIBUTING.md says of each part, for who looks at the package from inside.
    return re.sub(r"\s*Files touched in the\s+package: 0\.", "", str(found)).strip()


def relinked(text: str, folder: str) -> str:
    """A page whose links to files beside docs/ lead to their copies on the site; links to sources become text.

    Notebooks become pages.

    >>> relinked("[a](../CONTRIBUTING.md#x), [b](../src/b.py), [c](docs/d.md)", ".")
    '[a](contributing.md#x), b, [c](d.md)'
    """
    up = "../" * len(Path(folder).parts)
    out = rf"\]\((?:{re.escape(up + '../')})"
    text = re.sub(rf"{out}(CONTRIBUTING|CHANGELOG)\.md", lambda found: f"]({up}{found.group(1).lower()}.md", text)
    text = re.sub(rf"\[([^\]]*){out}(?:src|bench|tests)/[^)]*\)", r"\1", text)
    if folder == ".":
        text = re.sub(r"\]\((CONTRIBUTING|CHANGELOG)\.md", lambda found: f"]({found.group(1).lower()}.md", text)
    text = re.sub(r"(\]\([./]*tutorials/[\w-]+)\.ipynb", r"\1.md", text)
    return text.replace("](docs/", f"]({up}")


def write_explorer(path: Path, page: Path) -> None:
    """Write the explorer of the bundled digits networks, with twenty images, and show it in a page."""
    import polybound as pb

    text = page.read_text(encoding="utf-8")
    if EXPLORER not in text:
        raise ValueError(f"{page} has no {EXPLORER}")
    wide = "---\nhide: [navigation, toc]\n---\n\n"
    frame = f'<iframe class="explorer" src="{path.name}" title="The explorer"></iframe>'
    page.write_text(wide + text.replace(EXPLORER, f"{frame}\n\n[The explorer alone]({path.name})"), encoding="utf-8")
    networks = {"plain": pb.example("digits"), "projected": pb.example("digits-bound-1")}
    pb.report.build_explorer(networks, pb.data.load_digits("test"), path, images=20)


def write_worker(path: Path) -> None:
    """Write a script that starts the theme's search worker from its text where the page is a file."""
    import material

    (worker,) = (Path(material.__file__).parent / "templates").glob(WORKER)
    source = worker.read_text(encoding="utf-8").partition("//# sourceMappingURL")[0]
    path.write_text(
        "if (location.protocol === 'file:') {\n"
        "  const RealWorker = window.Worker;\n"
        f"  const source = {json.dumps(source)};\n"
        "  window.Worker = function () { return new RealWorker(URL.createObjectURL(new Blob([source]))); };\n"
        "}\n",
        encoding="utf-8",
    )
