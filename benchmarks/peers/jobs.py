# ruff: noqa: D102 - the five words of every peer are said in the head
"""The same job in each library: it writes when it was begun. Runs in the peers' own environment, without our packages.

`python jobs.py setup|fill N|one|gone|work` with PEER, PEER_DATABASE (an address), PEER_REDIS and PEER_LOG in the
environment. `fill` prints the time and enqueues N jobs as fast as the library can, `one` reads lines and enqueues a
job for each, `gone` waits until every job is acknowledged and prints the time, `work` is one worker.
"""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PEER = os.environ["PEER"]
DATABASE = os.environ.get("PEER_DATABASE", "")
REDIS = os.environ.get("PEER_REDIS", "")
BATCH = 500
BIN = Path(sys.executable).parent


def begun(submitted: float) -> None:
    """One record of 16 bytes: when it was submitted, when it was begun."""
    with open(os.environ["PEER_LOG"], "ab", buffering=0) as log:  # noqa: PTH123 - unbuffered
        log.write(struct.pack("dd", submitted, time.time()))


class Procrastinate:
    """PsycopgConnector, ten jobs at once: faster than its default of one."""

    def __init__(self) -> None:
        import procrastinate  # noqa: PLC0415

        self.app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=DATABASE))

        @self.app.task(name="noop")
        async def noop(submitted: float) -> None:
            begun(submitted)

        self.task = noop

    async def setup(self) -> None:
        async with self.app.open_async():
            await self.app.schema_manager.apply_schema_async()

    async def fill(self, count: int) -> None:
        async with self.app.open_async():
            for at in range(0, count, BATCH):
                batch = [{"submitted": time.time()} for _ in range(min(BATCH, count - at))]
                await self.task.batch_defer_async(*batch)

    async def one(self) -> None:
        async with self.app.open_async():
            async for _ in lines():
                await self.task.defer_async(submitted=time.time())

    def left(self) -> int:
        return counted("SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')")

    async def work(self) -> None:
        async with self.app.open_async():
            await self.app.run_worker_async(concurrency=10, install_signal_handlers=False)


class PgQueuer:
    """Its default batch of ten."""

    async def _queries(self) -> Any:
        import asyncpg  # noqa: PLC0415
        from pgqueuer.db import AsyncpgDriver  # noqa: PLC0415
        from pgqueuer.queries import Queries  # noqa: PLC0415

        return Queries(AsyncpgDriver(await asyncpg.connect(DATABASE)))

    async def setup(self) -> None:
        await (await self._queries()).install()

    async def fill(self, count: int) -> None:
        queries = await self._queries()
        for at in range(0, count, BATCH):
            size = min(BATCH, count - at)
            await queries.enqueue(["noop"] * size, [struct.pack("d", time.time())] * size, [0] * size)

    async def one(self) -> None:
        queries = await self._queries()
        async for _ in lines():
            await queries.enqueue("noop", struct.pack("d", time.time()))

    def left(self) -> int:
        return counted("SELECT count(*) FROM pgqueuer")

    async def work(self) -> None:
        import asyncpg  # noqa: PLC0415
        from pgqueuer import PgQueuer as Queue  # noqa: PLC0415

        queue = Queue.from_asyncpg_connection(await asyncpg.connect(DATABASE))

        @queue.entrypoint("noop")
        async def noop(job: Any) -> None:
            begun(struct.unpack("d", job.payload)[0])

        await queue.run()


class Celery:
    """Redis, prefork, late acknowledgement: otherwise a killed worker loses its job."""

    def __init__(self) -> None:
        import celery  # noqa: PLC0415

        self.app = celery.Celery("jobs", broker=REDIS)
        self.app.conf.update(
            task_ignore_result=True,
            task_acks_late=True,
            broker_connection_retry_on_startup=True,
            worker_hijack_root_logger=False,
        )
        self.task = self.app.task(name="noop", ignore_result=True)(begun)

    async def setup(self) -> None:
        """Nothing to make."""

    async def fill(self, count: int) -> None:
        for _ in range(count):
            self.task.delay(time.time())

    async def one(self) -> None:
        async for _ in lines():
            self.task.delay(time.time())

    def left(self) -> int:
        import redis  # noqa: PLC0415

        client = redis.Redis.from_url(REDIS)
        return int(client.llen("celery")) + int(client.hlen("unacked"))

    async def work(self) -> None:
        self.app.worker_main(["worker", "-c", "2", "-l", "ERROR", "--without-gossip", "--without-mingle"])


class DjangoQ:
    """ORM broker on PostgreSQL, two workers, its defaults."""

    def __init__(self) -> None:
        import django  # noqa: PLC0415
        from django.conf import settings  # noqa: PLC0415

        if not settings.configured:
            settings.configure(**django_settings())
        django.setup()

    async def setup(self) -> None:
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "jobs_settings"}
        migrate = [sys.executable, "-m", "django", "migrate", "-v", "0"]
        await asyncio.to_thread(subprocess.run, migrate, check=True, env=environment)

    async def fill(self, count: int) -> None:
        from asgiref.sync import sync_to_async  # noqa: PLC0415
        from django_q.tasks import async_task  # noqa: PLC0415

        def put() -> None:
            for _ in range(count):
                async_task("jobs.begun", time.time())

        await sync_to_async(put)()

    async def one(self) -> None:
        async for _ in lines():
            await self.fill(1)

    def left(self) -> int:
        return counted("SELECT count(*) FROM django_q_ormq")

    async def work(self) -> None:
        os.environ["DJANGO_SETTINGS_MODULE"] = "jobs_settings"
        os.execv(sys.executable, [sys.executable, "-m", "django", "qcluster"])  # noqa: S606 - our own list


def django_settings() -> dict[str, Any]:
    """For django-q2, alone in its own project."""
    from urllib.parse import urlsplit  # noqa: PLC0415

    parts = urlsplit(DATABASE)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "HOST": parts.hostname,
        "PORT": parts.port,
        "USER": parts.username,
        "PASSWORD": parts.password or "",
        "CONN_MAX_AGE": None,
    }
    return {
        "SECRET_KEY": "of the benchmark only",
        "USE_TZ": True,
        "INSTALLED_APPS": ["django.contrib.contenttypes", "django.contrib.auth", "django_q"],
        "DATABASES": {"default": database},
        "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
        "Q_CLUSTER": {
            "name": "bench",
            "workers": 2,
            "timeout": 60,
            "retry": 120,
            "orm": "default",
            "log_level": "ERROR",
        },
    }


async def lines() -> Any:
    """Standard input, line by line."""
    while await asyncio.to_thread(sys.stdin.readline):
        yield None


def counted(statement: str) -> int:
    """One number from the database."""
    import psycopg  # noqa: PLC0415

    with psycopg.connect(DATABASE, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
    return int(row[0]) if row else 0


PEERS: dict[str, Any] = {
    "procrastinate": Procrastinate,
    "pgqueuer": PgQueuer,
    "celery": Celery,
    "django-q2": DjangoQ,
}


def main() -> None:
    """One word."""
    peer, word = PEERS[PEER](), sys.argv[1]
    if word == "gone":
        while peer.left():
            time.sleep(0.02)
        print(time.time(), flush=True)
    elif word == "fill":
        print(time.time(), flush=True)
        asyncio.run(peer.fill(int(sys.argv[2])))
    else:
        asyncio.run(getattr(peer, word)())


if __name__ == "__main__":
    main()
