"""Batches on a device, and what is done there; ``_transfer.py`` copies them."""
