"""What a release says of itself: one version everywhere, and how to cite it."""

import re
from pathlib import Path

import yaml

import polybound as pb

ROOT = Path(__file__).parents[1]


def test_one_version_everywhere():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert pb.__version__ == str(cited["version"]) == headings[0]
    assert re.fullmatch(r"\d+\.\d+\.\d+", pb.__version__)


def test_the_citation_names_the_paper():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0" and cited["license"] == "MIT" and cited["title"] and cited["message"]
    (paper,) = cited["references"]
    assert paper["title"] == "Controlling the Complexity and Lipschitz Constant improves Polynomial Nets"
    assert [one["family-names"] for one in paper["authors"]] == ["Zhu", "Latorre", "Chrysos", "Cevher"]
