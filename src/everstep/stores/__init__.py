"""Stores: where bytes are kept. Start with `protocol`."""
