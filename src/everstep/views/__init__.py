"""What people are shown of a store, as plain JSON: the command line and the page only translate it.

Every function takes an engine first, and what it returns can go through `json.dumps` as it is. Values are read without
rebuilding anybody's classes: see `reading` and `json_values`.
"""
