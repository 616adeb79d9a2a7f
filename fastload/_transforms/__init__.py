"""Transforms: a torchvision chain becomes a plan, which is drawn for each batch.

Begin in ``recognise.py``.
"""
