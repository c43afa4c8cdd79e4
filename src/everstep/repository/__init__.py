"""Values in, values out: encodes and commits, loads and decodes, and remembers what was used lately."""
