"""Shared by every layer: random numbers, slabs, devices, the machine, stamps and timelines."""
