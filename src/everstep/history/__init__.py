"""What follows what, what differs, how two sides become one. Nothing here reads or writes a store by itself."""
