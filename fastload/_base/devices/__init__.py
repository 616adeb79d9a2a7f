"""The devices that batches are moved to."""
