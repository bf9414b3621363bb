"""What is computed from a recording alone: the squared network, the node spaces, who is used more than once."""
