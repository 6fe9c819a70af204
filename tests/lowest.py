"""Print the lowest versions that pyproject.toml allows, as constraints for pip: `name==version`, a line each.

python tests/lowest.py > lowest.txt && pip install -c lowest.txt -e '.[test]'
"""

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def lowest(requirements):
    """The requirements that have a lower end, each at that end."""
    found = (re.match(r"([A-Za-z0-9_.-]+)>=([0-9.]+)", each) for each in requirements)
    return {match[1]: match[2] for match in found if match}


if __name__ == "__main__":
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    # Matplotlib's lowest version calls what later versions of its parser warn of.
    print("pyparsing<3.3")
    for name, version in sorted({name: version for group in groups for name, version in lowest(group).items()}.items()):
        print(f"{name}=={version}")
