"""What fastload exchanges in other libraries: one list for each, ``PATCHES``.

``patch.py`` says what an entry has, ``proof.py`` how it proves itself before it is exchanged, and
``../redirect.py`` how a function is exchanged and put back.
"""
