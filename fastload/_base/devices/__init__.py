"""Devices that batches are moved to."""
