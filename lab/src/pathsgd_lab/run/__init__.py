"""One run: its settings (spec), its steps (optimisers, schedule, trainer), what it leaves behind (record, checkpoint).

RunSpec --train--> Record
"""
