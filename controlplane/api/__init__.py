"""What every REST view shares: credentials, problems, pages, bodies, schema. Composition of the paths: `urls`."""
