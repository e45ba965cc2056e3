"""What the smoke tests share: the ranks, tiny models, exact sizes, verl's patches and the report."""
