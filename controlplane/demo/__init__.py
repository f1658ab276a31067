"""The demo batch: an evaluation of HumanEval's own solutions, submitted by three tenants at once."""
