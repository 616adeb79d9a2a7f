"""``cache=``: what a loader keeps in memory between epochs. Read cache.py first."""
