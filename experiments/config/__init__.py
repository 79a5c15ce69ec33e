"""From the fields of a configuration to checked values and an optimizer."""
