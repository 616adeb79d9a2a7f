"""The engines: what fills a batch. Read ``base.py``, their contract, and ``registry.py`` first.

``native`` is the C++ core; ``dali`` decodes with NVIDIA DALI and our crops; ``gather`` copies rows
of tensors. Everything else goes through torch's own DataLoader machinery.
"""
