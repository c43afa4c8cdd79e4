"""The page and its HTTP interface."""
