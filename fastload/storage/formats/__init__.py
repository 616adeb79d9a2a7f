"""One module per format: its reader and its writer."""
