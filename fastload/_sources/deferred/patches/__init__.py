"""What fastload exchanges in other libraries: one list for each, ``PATCHES``.

``patch.py`` says what an entry has, ``proof.py`` what it has to prove, ``../guarded.py`` when, and
``../redirect.py`` how a function is exchanged and put back.
"""
