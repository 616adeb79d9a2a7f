"""Batches on a device, and what is done there; ``_run/delivery/transfer.py`` copies them."""
