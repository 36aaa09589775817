"""What tests share: expected values, builders, small projects, processes."""
