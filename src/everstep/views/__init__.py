"""What people see of a store, as plain JSON: made once, for the command line and the page."""
