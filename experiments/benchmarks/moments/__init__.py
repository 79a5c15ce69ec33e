"""What second moments cost, as multiples of a plain gradient."""
