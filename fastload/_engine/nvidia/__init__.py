"""The engine through NVIDIA DALI; begin in dali.py."""
