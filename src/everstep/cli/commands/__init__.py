"""The commands, a few to a file. Each translates words of a shell into one call of Python, and its answer into text."""
