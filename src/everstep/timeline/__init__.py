"""The operations of the engine: save, rewind, undo, branch, merge, each as one commit."""
