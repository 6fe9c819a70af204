"""`python -m generator`: write the pages to build/pages, then build the site to build/docs; any warning is an error."""

import os
import subprocess
import sys
from pathlib import Path

from generator.pages import write_pages

if __name__ == "__main__":
    root = Path(__file__).parents[2]
    write_pages(root, root / "build" / "pages")
    # The theme prints that another major version of MkDocs will not do; ours is below 2.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    # Not --quiet, which would also keep it from counting warnings.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    code = subprocess.run(command, cwd=root, env=environment, check=False).returncode  # noqa: S603
    if code == 0:
        print(f"open {root / 'build' / 'docs' / 'index.html'}")
    sys.exit(code)
