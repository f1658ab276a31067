"""The fleet: PostgreSQL behind PgBouncer, web processes behind HAProxy, a leading replica, a queue, agents."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from admission.models import Tenant
from admission.services.submitting import Submission, submit_runs
from controlplane.core.audit import SYSTEM
from controlplane.up import children
from controlplane.up.options import Options
from leadership.models import Lease
from runners.agent.executors.docker_adapter import DockerAdapter
from runners.cli.config import load_config
from runners.services.enrolment import issue_enrolment_token
from tests import ledger
from tests.chaos.balancer import Balancer, free_port, haproxy
from tests.chaos.plan import Plan
from tests.chaos.processes import Agent, Kept, Web
from tests.chaos.work import LABELS, Work, planned
from tests.fencing.world import until
from tests.leadership.pooler import logins, pgbouncer
from tests.own_server import OwnServer, django_on, own_server

POOL = 20
MOST_AT_ONCE = 500
BOOT_SECONDS = 120.0
NO_DATABASE = "postgresql://nobody@127.0.0.1:1/none"


@dataclass
class World:
    """What there is, and what was submitted."""

    plan: Plan
    server: OwnServer
    folder: Path
    pooled: str
    image: str
    mark: str = field(default_factory=lambda: f"chaos-{uuid4().hex[:12]}")
    webs: list[Web] = field(default_factory=list)
    agents: list[Agent] = field(default_factory=list)
    others: list[Kept] = field(default_factory=list)
    tenants: list[Tenant] = field(default_factory=list)
    works: dict[int, Work] = field(default_factory=dict)
    """By the number of the run."""

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def processes(self) -> list[Kept]:
        return [*self.webs, *self.others, *self.agents]

    def environment(self, **extra: str) -> dict[str, str]:
        windows = {f"CONTROLPLANE_{name.upper()}": str(value) for name, value in self.plan.windows().items()}
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("CONTROLPLANE_")},
            **windows,
            "DATABASE_URL": self.pooled,
            "DATABASE_DIRECT_URL": self.server.url,
            "SECRET_KEY": "a secret of the tests",
            "ALLOWED_HOSTS": "127.0.0.1",
            "CONTROLPLANE_EXECUTOR": "process",
            "CONTROLPLANE_SCRATCH_DIR": str(self.folder / "scratch"),
            **extra,
        }

    def start_servers(self) -> None:
        """The web processes, and what drives the sweeps: a replica that leads, and the queue it writes to."""
        for number in range(self.plan.webs):
            port = free_port()
            options = Options(0, 0, "process", port, once=False, as_json=False, demo=False, problems=0)
            argv = list(children.web(options, {}).argv)
            argv[argv.index("--workers") + 1] = str(self.plan.web_workers)
            self.webs.append(Web(f"web{number}", argv, self.environment(), self.folder, port=port))
        self.others = [
            Kept("replica", children.manage("replica", "--id", "chaos"), self.environment(), self.folder),
            Kept("qcluster", children.manage("qcluster"), self.environment(), self.folder),
        ]
        for one in (*self.webs, *self.others):
            one.start()
        for web in self.webs:
            until(web.is_ready, web.text, BOOT_SECONDS)

    def start_agents(self, url: str) -> None:
        """They enrol by themselves; the label that the runs ask for is given by the server."""
        docker = 1 if self.plan.on_docker else 0
        _, secret = issue_enrolment_token(actor=SYSTEM, uses=self.plan.agents + docker, trust_labels=LABELS)
        for number in range(self.plan.agents + docker):
            name, executor = f"agent{number}", "docker" if number == self.plan.agents else "process"
            home = self.folder / name
            home.mkdir(mode=0o711)
            env = self.environment(
                DATABASE_URL=NO_DATABASE,
                DATABASE_DIRECT_URL="",
                WHARFINGER_URL=url,
                WHARFINGER_ENROLMENT_TOKEN=secret,
                WHARFINGER_RUNNER_STATE=str(home / "state"),
                WHARFINGER_RUNNER_LABELS=f"agent={name}",
                CONTROLPLANE_SCRATCH_DIR=str(home / "scratch"),
            )
            options = ["--name", name, "--executor", executor, "--slots", str(self.plan.slots)]
            argv = [sys.executable, "-m", "runners.cli", "runner", "run", *options]
            self.agents.append(Agent(name, argv, env, self.folder))
            self.agents[-1].start()
        for agent in self.agents:
            until(agent.is_connected, agent.text, BOOT_SECONDS)
        until(Lease.objects.filter(holder_name="chaos").exists, self.others[0].text, BOOT_SECONDS)

    def end(self) -> None:
        for one in reversed(self.processes):
            one.end()
        # Killed agents leave their containers to their next life, which there is none of.
        if left := self.containers():
            subprocess.run(["docker", "rm", "-f", *left], check=True, stdout=subprocess.DEVNULL)

    def containers(self) -> dict[str, str]:
        """Of the agent with Docker, in any state."""
        # Without an identity it has made nothing yet, and nothing may be looked for by an empty one.
        identity = self.identity(self.agents[-1]) if len(self.agents) > self.plan.agents else ""
        if not identity:
            return {}
        adapter = DockerAdapter()
        try:
            return adapter.list_ids({"wharfinger.driver": identity})
        finally:
            adapter.close()

    def identity(self, agent: Agent) -> str:
        """By which what it makes is found on this machine."""
        return load_config(Path(agent.env["WHARFINGER_RUNNER_STATE"]) / "config.toml").runner.identity

    def submit(self) -> None:
        plan = self.plan
        self.make_tenants()
        self.put(planned(self.mark, plan.quotas, plan.runs, plan.on_docker, plan.seconds))

    def make_tenants(self) -> None:
        self.tenants = [ledger.make_tenant(quota) for quota in self.plan.quotas]

    def put(self, works: Sequence[Work]) -> None:
        """Into the queue, each under its tenant."""
        for number, tenant in enumerate(self.tenants):
            own = [work for work in works if work.tenant == number]
            for first in range(0, len(own), MOST_AT_ONCE):
                self._submit(tenant, own[first : first + MOST_AT_ONCE])

    def _submit(self, tenant: Tenant, works: list[Work]) -> None:
        given = [Submission(work.spec(self.journal, self.image)) for work in works]
        for result, work in zip(submit_runs(tenant, given, actor=SYSTEM), works, strict=True):
            assert result.run is not None, result
            self.works[result.run] = work


@contextmanager
def brought_up(plan: Plan, image: str) -> Iterator[tuple[World, Balancer]]:
    """Everything runs, the runs are submitted; nothing is left afterwards."""
    # Outside pytest's directories, which are closed to the users that runs have: they must get to their journal.
    folder = Path(tempfile.mkdtemp(prefix="wharfinger-chaos."))
    folder.chmod(0o711)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        server = stack.enter_context(own_server())
        stack.enter_context(django_on(server))
        pool = folder / "pool"
        pool.mkdir()
        world = World(plan, server, folder, stack.enter_context(pgbouncer(server.url, pool, POOL)), image)
        stack.callback(world.end)
        world.journal.touch()
        world.journal.chmod(0o666)
        world.start_servers()
        balancer = stack.enter_context(haproxy(folder, [web.port for web in world.webs]))
        world.start_agents(balancer.url)
        assert logins(pool) >= len(world.webs) + len(world.others), "the servers did not come through the pooler"
        yield world, balancer
