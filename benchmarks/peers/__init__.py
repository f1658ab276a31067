"""Other job queues, each in an environment of its own: nothing here is imported by the product or by its tests."""
