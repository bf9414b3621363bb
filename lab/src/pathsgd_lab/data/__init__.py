"""The data sets of the paper: known files with checksums (``files``), and how they get here (``download``)."""
