"""What users call: filters, their claims, and functions over filters by name."""
