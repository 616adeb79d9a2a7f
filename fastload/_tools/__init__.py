"""The tools behind the commands: autotune, doctor, watch, show, info, verify, unpack."""
