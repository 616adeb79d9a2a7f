"""What is done to the values of pixels."""
