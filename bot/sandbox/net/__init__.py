"""The network of a turn: the way to the model and out to the internet, and nothing else."""
