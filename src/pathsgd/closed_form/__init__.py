"""A plain recurrent net needs no interpreter: its quantities in closed form."""
