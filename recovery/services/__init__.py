"""The verbs of liveness and recovery: the only writers of replicas, claims and recovery actions."""
