"""One epoch: its arguments, order, state, engine or workers, delivery."""
