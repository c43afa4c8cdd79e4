"""A whole store on ordered keys and values. Start with `interface`: it is all that a new backend has to supply."""
