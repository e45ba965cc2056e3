"""Container images for verl whose every byte is a function of one lock."""
