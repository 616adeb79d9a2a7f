"""Engines through libraries of NVIDIA."""
