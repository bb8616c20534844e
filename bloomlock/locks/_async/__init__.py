"""What users call: the locks."""
