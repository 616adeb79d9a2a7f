"""What every layer above shares: random numbers, memory of batches, devices, the machine, stamps."""
