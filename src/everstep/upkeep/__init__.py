"""Looking after a store: checking all that it holds, and mending what is damaged."""
