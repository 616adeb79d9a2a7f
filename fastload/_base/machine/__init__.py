"""What this machine and its containers leave to this process."""
