"""Check what is in a wheel and an sdist: `python tests/contents.py dist`; `make dist` does so."""

import sys
import tarfile
import zipfile
from pathlib import Path

MOST = 5_000_000
"""Bytes that either file may have: bundled networks are some 4 MB of them."""

NEEDED = (
    "py.typed",
    "models/trained/digits.safetensors",
    "models/trained/digits-bound-1.safetensors",
    "models/trained/pn-4.safetensors",
    "models/trained/pn-4-bound-1.safetensors",
    "models/trained/cifar10-polynet.safetensors",
    "models/trained/fashion-mnist-polynet.safetensors",
    "models/trained/mnist-polynet.safetensors",
    "experiments/named/table-1.toml",
    "experiments/published.csv",
    "report/report_page/page.html",
    "report/explorer_page/page.js",
)
KINDS = (".py", ".toml", ".csv", ".html", ".js", ".css", ".safetensors", ".typed", ".json", ".md")


def problems(dist, root):
    """What is wrong with the one wheel and the one sdist of a folder."""
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as unpacked, tarfile.open(sdist) as sources:
        inside, packed = unpacked.namelist(), [name.partition("/")[2] for name in sources.getnames()]
    found = [f"{file.name} has {file.stat().st_size:,} bytes" for file in (wheel, sdist) if file.stat().st_size > MOST]
    source = {
        path.relative_to(root / "src").as_posix()
        for path in (root / "src" / "polybound").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    own = {name for name in inside if ".dist-info/" not in name}
    found += [f"{wheel.name} lacks {name}" for name in sorted(source - own)]
    found += [f"{wheel.name} has {name}, which is not in src" for name in sorted(own - source)]
    found += [f"{wheel.name} has {name}, of an unknown kind" for name in sorted(own) if not name.endswith(KINDS)]
    found += [f"{wheel.name} lacks {name}" for name in NEEDED if f"polybound/{name}" not in own]
    if not any(name.endswith("licenses/LICENSE") for name in inside):
        found.append(f"{wheel.name} has no licence")
    found += [f"{sdist.name} lacks {name}" for name in ("LICENSE", "README.md", "CITATION.cff") if name not in packed]
    found += [f"{sdist.name} has {name}" for name in packed if name.startswith(("tests", "docs", "bench", "runs"))]
    return found


def main():
    dist = Path(sys.argv[1])
    bad = problems(dist, Path(__file__).resolve().parents[1])
    print("\n".join(bad or [f"{file.name}: {file.stat().st_size:,} bytes" for file in sorted(dist.iterdir())]))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
