"""The verbs of the ledger: the only writers. Admin, REST and commands are thin over them."""
