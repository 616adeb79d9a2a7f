"""A user's Dataset, run in worker processes or in this one; begin in dataset_epoch.py."""
