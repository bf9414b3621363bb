"""Models that other people wrote, trained by PathAdam at its defaults beside Adam: `make zoo`."""
