"""Floor 4: what is measured. The shootout, its results, the command line."""
