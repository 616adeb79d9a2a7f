"""Name and version, in one place: setup.py reads this file without importing the package."""

# On the package index "fastload" is a download tool that has nothing to do with this package.
DISTRIBUTION = "torch-fastload"

__version__ = "0.1.0"
