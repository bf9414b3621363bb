"""The paper's data sets: files with checksums (``files``), and how to get them (``download``)."""
