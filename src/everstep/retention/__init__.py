"""Which checkpoints stay, and how the others go."""
