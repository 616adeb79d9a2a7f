"""Puts the pages of the site together in build/docs, and has mkdocs build it; run by `make docs`.

It fails on a dead link, and on a public name without a place.

README.md becomes the first page. Links between documents, which hold on GitHub, are changed to hold
on the site. The page of the API names every public object; mkdocstrings fills in its docstring.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fastload

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "docs"
BESIDE = ("ARCHITECTURE.md", "SPECIFICATION.md", "CONTRIBUTING.md", "CHANGELOG.md")
ERRORS = "Errors"
GROUPS = {
    "Loading": ("FastLoader", "PackedDataset", "Mix", "Buckets", "open_store", "open_writer"),
    "Packing": ("pack", "append", "concat", "info", "verify", "unpack"),
    "Measuring and tuning": ("autotune", "show", "trace", "watch"),
    "In code that is not yours": ("install", "uninstall", "patched"),
}


def main() -> int:
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for page in PAGES.glob("*.md"):
        text = page.read_text(encoding="utf-8").replace("](../", "](")  # what lies beside docs/
        page.write_text(switched(text), encoding="utf-8")
    for name in ("README.md", *BESIDE):
        text = (ROOT / name).read_text(encoding="utf-8")
        target = PAGES / ("index.md" if name == "README.md" else name)
        target.write_text(switched(relinked(text)), encoding="utf-8")
    (PAGES / "examples").mkdir()
    (PAGES / "examples" / "index.md").write_text(examples(), encoding="utf-8")
    (PAGES / "api.md").write_text(api(), encoding="utf-8")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},  # an advertisement
        stderr=subprocess.PIPE,
        text=True,
    )
    print("".join(line for line in built.stderr.splitlines(True) if not line.startswith("INFO")))
    if built.returncode == 0:
        print(f"docs: {ROOT / 'build' / 'site' / 'index.html'}")
    return built.returncode


def relinked(text: str) -> str:
    """Links of a page beside docs/, as they are on the site."""
    text = re.sub(r"\]\(docs/", "](", text)
    text = re.sub(r'(srcset|src)="docs/', r'\1="', text)
    text = re.sub(r"\]\(README\.md", "](index.md", text)
    text = re.sub(r"\]\(examples/([\w.]+)\)", lambda m: f"](examples/index.md#{slug(m[1])})", text)
    return re.sub(r"\]\(examples\)", "](examples/index.md)", text)


def switched(text: str) -> str:
    """Pictures for light and dark pages, so that they follow the site's switch, too.

    On GitHub they follow the system's setting (bench/plot.py, ``picture``).
    """
    form = r'<picture><source [^>]*srcset="([^"]+)"><img alt="([^"]+)" src="([^"]+)"></picture>'
    return re.sub(form, r"![\2](\3#only-light)\n![\2](\1#only-dark)", text)


def slug(name: str) -> str:
    """The anchor of a heading that is a file's name."""
    return name.replace(".", "")


def examples() -> str:
    """A page with every script, whole."""
    parts = ["# Examples\n\nWhole scripts, which the tests run."]
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix == ".py":
            code = path.read_text(encoding="utf-8")
            parts.append(f"## {path.name}\n\n```python\n{code}```")
        elif path.suffix == ".ipynb":
            shutil.copy(path, PAGES / "examples")
            parts.append(f"## {path.name}\n\nA notebook: [{path.name}]({path.name}).")
    return "\n\n".join(parts) + "\n"


def api() -> str:
    """A page with every public name of the package."""
    grouped = {name for names in GROUPS.values() for name in names}
    public = set(fastload.__all__) - {"__version__"}
    errors = sorted(
        name for name in public - grouped if issubclass(getattr(fastload, name), Exception)
    )
    left = public - grouped - set(errors)
    if left or grouped - public:
        raise SystemExit(f"docs: GROUPS lacks {sorted(left)}, or names what is not public")
    parts = ["# Python\n\nEvery public name. `fastload.hints` has the types of arguments."]
    for group, names in {**GROUPS, ERRORS: tuple(errors)}.items():
        parts.append(f"## {group}")
        parts += [f"::: fastload.{name}" for name in names]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
