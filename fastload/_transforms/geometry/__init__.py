"""Geometry: which pixels of the source image make up a sample (crops, resizes, pads, flips)."""
