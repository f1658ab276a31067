"""docs/guarantees.md, made from the markers of the tests: `python -m tests.guarantees` writes it.

A sentence for each rule stands here; which tests prove it is read from their `@pytest.mark.rule(...)`, by parsing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guarantees.md"
BEGIN, END = "<!-- rules: begin -->", "<!-- rules: end -->"

RULES = {
    "G1": "A tenant's limit holds over the whole fleet; a machine's limits stay local.",
    "G2": "Use is derived from rows; a counter only makes a claim atomic, and is checked.",
    "G3": "What could not be checked is no permission.",
    "G4": "Each lease says what it guarantees and what it does not (below).",
    "G5": "Ownership is judged by the database's clock; a process's wall clock decides nothing.",
    "G6": "State changes are compare-and-set; the loser writes nothing.",
    "G7": "Unknown is an answer of its own.",
    "G8": "Guarantees are certified on real servers with separate connections and processes.",
    "G9": "Nothing rests on the state of a database session.",
    "G10": "The defaults, on the real database, run in every lane.",
    "A1": "Of the dimensions of admission only the tenant's concurrency is fleet-wide.",
    "A2": "The reading before an admission is a pre-filter; nobody hides anybody else.",
    "A3": "The reading counts runs that hold compute, and nothing queued.",
    "A4": "The limit is the predicate of the counter's own update, and holds at every instant.",
    "A5": "A counter equals the weights of its permits at every committed instant.",
    "A6": "A permit's id claimed again, even at once, is the same right and counts once.",
    "A7": "The same id with another tenant or weight is refused.",
    "A8": "Release is by identity, idempotent, and subtracts what was deleted.",
    "A9": "Whatever drops a run leaves no permit.",
    "A10": "After every wait the run itself decides; a lost reply is found again.",
    "A11": "A permit is a lease, renewed for exactly what is listed.",
    "A12": "Locks are taken in one order everywhere; statements find their rows by an index.",
    "A13": "A claim that errors is closed for that tenant only.",
    "A14": "No quota, no permits; a first quota back-fills; removing one touches no run; zero admits nothing.",
    "A15": "A lowered quota kills nothing and admits nothing until drained; every change is audited.",
    "A16": "Under strict fencing a cut-off driver's containers are gone before its runs can be taken.",
    "A17": "An audit detects drift in one snapshot and repairs it under the counter's lock.",
    "A18": "Tenants share the fleet by weight; within a tenant priority comes first, then age.",
    "A19": "A driver's slots, memory and processors bound what it is given.",
    "A20": "A full shared limit blocks only its own runs.",
    "A21": "A full queue answers 429 before anything is reserved.",
    "A22": "A batch is admitted in as many statements as one run; one tenant's error undoes no other's.",
    "A23": "Other systems claim, renew and release permits by their own ids.",
    "A24": "Any queued run can say what it waits for.",
    "A25": "A broken row is set aside with its reason, and the next one is served.",
    "A26": "A pause stops admission and nothing else; a tenant with live work is not deleted, or drained first.",
    "A27": "Submit is idempotent by key.",
    "A28": "Queue, start and run have deadlines; retries back off; a cancel ends when the stop is confirmed.",
    "A29": "A hold that cannot start goes back with its permit and burns no attempt.",
    "A30": "The highest concurrency a tenant ever had is computed from exact times.",
    "L1": "One row and one atomic statement decide who leads a role.",
    "L2": "A term grows with every win; a late answer of an old term touches nothing.",
    "L3": "Belief ends before the lease does, by a monotonic clock.",
    "L4": "A clean stop hands the lease back.",
    "L5": "Loops that act on the world run once per cluster.",
    "L6": "A sweep proves its term inside its own transaction.",
    "L7": "The gate stands where a task is enqueued, and the term travels with it.",
    "L8": "One registry of loops, seen by operators.",
    "L9": "A second living process under one id refuses to run.",
    "L10": "Forked children never lead or beat for their parent.",
    "L11": "Recurring work fires once per due time.",
    "R1": "The driver of a run is stamped by the store.",
    "R2": "A replica beats beside its work, and stops when it is wedged.",
    "R3": "Recovery takes only the work of replicas that are gone.",
    "R4": "An unreadable heartbeat set means that everyone may be alive.",
    "R5": "Every replica looks again and again; a failing look schedules the next.",
    "R6": "A stale replica's work is claimed, put-if-absent, before it is touched.",
    "R7": "A dead replica's row goes last.",
    "R8": "A takeover is one exclusive compare-and-set that raises the epoch; the displaced driver writes nothing.",
    "R9": "What cannot be decided now is a durable debt.",
    "R10": "A container still running here is adopted.",
    "R11": "Recovery runs on every replica and never blocks a start.",
    "R12": "A replica declared dead writes nothing under its old incarnation.",
    "R13": "After an outage of the database nobody is taken for dead for one window.",
    "R14": "A clean stop hands back what it holds and burns no attempt.",
    "R15": "Recovered endings go through the ordinary transition.",
    "R16": "Recovery says what it did and what it left alone.",
    "Q1": "Any web process serves any runner.",
    "Q2": "Credentials are random, hashed, shown once, and revoked from the next call on.",
    "Q3": "A runner's claim is the same admission, up to its free capacity.",
    "Q4": "A claim repeated under its request id gets the same answer.",
    "Q5": "A claimed run is started in time or goes back; five in a row burn one attempt.",
    "Q6": "A runner's lease is a duration by the store's clock; every write proves run, runner and epoch.",
    "Q7": "A long poll is woken by new work and costs almost nothing.",
    "Q8": "Logs are appended by offset, capped, and their gaps shown.",
    "Q9": "A cancel reaches the runner on every reply; a result counts once.",
    "Q10": "A run that no runner can serve says so.",
    "Q11": "A draining runner is offered nothing.",
    "Q12": "The agent is plain Python, survives outages and restarts, and loses no result.",
    "Q13": "Secrets appear in the accepted claim only, and masked elsewhere.",
    "C1": "A run may be done by an external service.",
    "C2": "A callback is stored before it is acknowledged.",
    "C3": "Callback tokens are per attempt, signed, expiring.",
    "C4": "Only a terminal message ends a run.",
    "C5": "Webhooks are sent at least once, signed, to public addresses.",
    "S1": "Session caps are permits.",
    "S2": "A session past its deadline holds nothing.",
    "S3": "Orphaned sessions are settled by the gated sweep.",
    "S4": "Service pools follow their backlog.",
    "P1": "At most so many containers run or could start per instance.",
    "P2": "Admission stands where containers are started.",
    "P3": "A hosted instance refuses to run half configured.",
    "P4": "Many processes share one daemon, whose identity is pinned.",
    "P5": "Redis holds one hash of owner tokens, changed by scripts.",
    "P6": "Only a confirmed removal frees what a container occupied.",
    "P7": "Created once, registered, started once; a lost reply is found by label.",
    "P8": "A stale release touches nobody else.",
    "P9": "A holder that cannot renew removes its container.",
    "P10": "Recovery runs on demand and by itself.",
    "P11": "A resize fences every holder of the old generation.",
    "P12": "A lost or rolled-back ledger fails closed.",
    "P13": "A caller's deadline covers the wait.",
    "P14": "Exemptions are internal only.",
    "P15": "Counted and real containers are compared.",
    "P16": "All Docker calls of one execution use one captured endpoint.",
    "P17": "Containers run confined, with limits verified as applied.",
    "P18": "Limits below the tenant stay in force.",
    "O1": "Everything an operator needs is in the admin.",
    "O2": "Each verb is one function behind admin, REST and command, with permission, reason and audit.",
    "O3": "REST: problem+json, cursors, filters, ETags, request ids, tenants see only their own.",
    "O4": "Liveness, readiness, metrics and logs tell the truth, and no secret.",
    "O5": "No page shows a stale number as fresh.",
    "X1": "One command installs and runs it; one tests it; one measures it.",
    "X2": "The commands and their options are as pinned.",
    "X3": "The REST paths are as pinned.",
    "X4": "The environment variables are as pinned.",
    "X5": "The console script's commands are as pinned.",
}

OWED_LATER = {*(f"C{n}" for n in range(1, 6)), *(f"S{n}" for n in range(1, 5))}
"""Callbacks, sessions and service pools: rules of the contract of which nothing is built yet."""

REQUIRED = RULES.keys() - OWED_LATER
"""Rules whose proof this version owes."""


@cache
def marked_tests() -> tuple[tuple[str, str, str], ...]:
    """(rule, file, test) of every marker on a test function, its class or its module."""
    found: list[tuple[str, str, str]] = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        inherited = [rule for node in tree.body if isinstance(node, ast.Assign) for rule in _rules(node.value)]
        found += _in(tree.body, inherited, str(path.relative_to(ROOT)))
    return tuple(found)


def _in(body: list[ast.stmt], inherited: list[str], file: str) -> Iterator[tuple[str, str, str]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            rules = inherited + [r for d in node.decorator_list for r in _rules(d)]
            yield from _in(node.body, rules, file)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            for rule in dict.fromkeys(inherited + [r for d in node.decorator_list for r in _rules(d)]):
                yield rule, file, node.name


def _rules(node: ast.expr) -> list[str]:
    """The arguments of each `….rule(…)` call within an expression."""
    return [
        argument.value
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "rule"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def table() -> str:
    """The rules with their tests, in the order of the contract."""
    proofs: dict[str, list[str]] = {}
    for rule, file, test in marked_tests():
        proofs.setdefault(rule, []).append(f"`{test.removeprefix('test_')}` ({Path(file).name})")
    lines = ["| rule | says | proved by |", "|---|---|---|"]
    for rule, sentence in RULES.items():
        if rule in REQUIRED or rule in proofs:
            lines.append(f"| {rule} | {sentence} | {'<br>'.join(proofs.get(rule, ['**nothing yet**']))} |")
    return "\n".join(lines)


def page() -> str:
    """The page with its table made anew; the text around it is written by hand."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{head}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page())
