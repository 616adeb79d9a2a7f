"""The CPUs and the memory that this process may use."""
