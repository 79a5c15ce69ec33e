"""What compression costs in arithmetic, beside a momentum SGD step."""
