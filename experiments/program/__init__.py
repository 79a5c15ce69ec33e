"""What every program here has: flags, messages, tables and files."""
