"""Values: Python objects to canonical bytes, bytes to trees of objects. Pure."""
