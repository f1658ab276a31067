"""REST over replicas. Operators only: a tenant has no business with the fleet's machines."""
