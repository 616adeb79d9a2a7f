"""Transforms: a torchvision chain is read into a ``Plan``, which is drawn for each batch.

Start reading in ``recognise.py``.
"""
