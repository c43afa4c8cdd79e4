"""What an agent does is saved while it does it: decorated calls, scopes, live threads."""
