"""Deferred images: what a user's Dataset opens and transforms, decoded later, a batch at a time.

``recording.py`` is the contract: what was opened, and what was asked of it. ``image.py`` and
``tensor.py`` record while they pass for a PIL image and a tensor, of which ``memory.py`` has what
was recorded, and ``tensor_functions.py`` what torch's functions do with it; ``operations.py`` is
the table of what they record. ``switch.py`` puts them in the place of what the user's code opens:
``patches`` lists what is exchanged in each library, ``openers.py``, ``torchvision_io.py`` and
``opencv.py`` have what opens images. ``replay.py`` makes one of them as Pillow and torch would
have; ``batch.py`` has the core make many, and ``single.py`` one that cannot wait. ``ahead.py``
guesses which ones a sample will ask for. ``torchvision_transforms.py`` has torchvision come to the
recording in fewer steps, ``torchvision_v2.py`` its v2.
"""
