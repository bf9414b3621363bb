"""Many runs: which cells a grid has, where they run, what they left, and what is shown meanwhile.

grid --> cells --jobs (cluster)--> results folder
"""
