"""What is done with one model: written as ONNX (``export``), looked at (``inspection``)."""
