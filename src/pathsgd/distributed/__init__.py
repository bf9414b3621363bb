"""What knows of ranks and shards: parameters of which every process holds a part."""
