"""The command `everstep`: what people and scripts do with a store from a shell. Start at `start.py`."""
