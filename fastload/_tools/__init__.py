"""What commands and users call beside training."""
