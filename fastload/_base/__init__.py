"""What every layer shares: random numbers, slabs, devices, the machine, stamps, timelines."""
