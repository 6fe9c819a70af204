"""What a release says of itself: one version everywhere, and how to cite it."""

import re
from pathlib import Path

import yaml

import contents
import polybound as pb
import smoke

ROOT = Path(__file__).parents[2]


def test_one_version_everywhere():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert pb.__version__ == str(cited["version"]) == released[0]
    assert re.fullmatch(r"\d+\.\d+\.\d+", pb.__version__)


def test_the_citation_names_the_paper():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0" and cited["license"] == "MIT" and cited["title"] and cited["message"]
    (paper,) = cited["references"]
    assert paper["title"] == "Controlling the Complexity and Lipschitz Constant improves Polynomial Nets"
    assert [one["family-names"] for one in paper["authors"]] == ["Zhu", "Latorre", "Chrysos", "Cevher"]


def test_what_a_wheel_needs_is_there():
    """`make dist` asks for these files in the wheel, `make smoke` where it is installed."""
    package = Path(pb.__file__).parent
    asked = {*contents.NEEDED, *smoke.NEEDED}
    assert [name for name in sorted(asked) if not (package / name).is_file()] == []
