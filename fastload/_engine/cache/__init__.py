"""``cache=``: what a loader keeps in memory between epochs; begin in cache.py."""
