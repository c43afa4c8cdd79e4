"""Which store an address names, and the options it takes."""
