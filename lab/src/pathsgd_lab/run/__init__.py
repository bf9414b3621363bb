"""One run: settings (spec), steps (optimisers, schedule, trainer), results (record, checkpoint).

RunSpec --train--> Record
"""
