"""fastload measured against torch's DataLoader and every other loader: ``python -m bench list``.

Not part of the installed package. One file per loader in ``loaders/`` (``base.py`` is the
interface), one per suite in ``suites/``. docs/benchmarks.md tells how to read the figures.
"""
