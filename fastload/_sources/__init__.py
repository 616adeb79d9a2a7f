"""Datasets that the engines read without their Python code; begin in source.py."""
