"""The same as ``fastload autotune``, as a script: ``python bench/autotune.py imgs.lmdb``."""

from __future__ import annotations

from fastload.cli import main

if __name__ == "__main__":
    import sys

    main(["autotune", *sys.argv[1:]])
