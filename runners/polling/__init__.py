"""Claims that wait: one desk for each web process, asyncio, no database connection held while waiting."""
