"""A Flower deployment on this machine: one SuperLink and four SuperNodes, each in its own process.

A NumPy client adds a constant to the parameters of the same 40 KB model. Neither side trains, so the duration of a
round is the overhead of the deployment. Prints one JSON object per line: name, value, unit.
Usage: flower.py ROUNDS, with flwr and NumPy on PYTHONPATH.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

NODES = 4
ENTRY = {
    "superlink": "from flwr.superlink.cli import flower_superlink as run; run()",
    "supernode": "from flwr.supernode.cli import flower_supernode as run; run()",
    "flwr": "from flwr.cli.app import app as run; run()",
}
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "rounds"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "florin"

[tool.flwr.app.components]
serverapp = "rounds.server:app"
clientapp = "rounds.client:app"
"""
CLIENT = """
from flwr.client import ClientApp, NumPyClient


class Client(NumPyClient):
    def fit(self, parameters, config):
        return [part + 0.001 for part in parameters], 100, {}


app = ClientApp(client_fn=lambda context: Client().to_client())
"""
SERVER = """
import time

import numpy as np
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg

SHAPES = [(128, 64), (128,), (10, 128), (10,)]


class Timed(FedAvg):
    def aggregate_fit(self, server_round, results, failures):
        print(f"ROUND {server_round} {time.time()} {len(results)}", flush=True)
        return super().aggregate_fit(server_round, results, failures)


def server_fn(context):
    zeros = [np.zeros(shape, dtype=np.float32) for shape in SHAPES]
    strategy = Timed(
        fraction_evaluate=0.0,
        min_fit_clients=NODES,
        min_available_clients=NODES,
        initial_parameters=ndarrays_to_parameters(zeros),
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))


app = ServerApp(server_fn=server_fn)
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def until_open(*ports):
    """Waits until every port accepts connections."""
    deadline = time.monotonic() + 120
    for port in ports:
        while time.monotonic() < deadline:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(folder, name, arguments, log):
    # These programs start other Flower programs by name, so PATH starts with the folder of their scripts.
    environment = dict(os.environ, FLWR_HOME=str(folder / "home"), FLWR_TELEMETRY_ENABLED="0")
    scripts = next(p for p in sys.path if pathlib.Path(p, "flwr").is_dir()) + "/bin"
    environment["PATH"] = scripts + os.pathsep + environment["PATH"]
    environment["PYTHONUNBUFFERED"] = "1"
    command = [sys.executable, "-c", ENTRY[name], *arguments]
    return subprocess.Popen(
        command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )


def measure(folder, rounds, processes):
    app = folder / "app"
    (app / "rounds").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "rounds" / "__init__.py").write_text("")
    (app / "rounds" / "client.py").write_text(CLIENT)
    server = SERVER.replace("NODES", str(NODES)).replace("ROUNDS)", f"{rounds})")
    (app / "rounds" / "server.py").write_text(server)
    port = free_port()
    (folder / "home").mkdir()
    (folder / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    link = start(
        folder,
        "superlink",
        ["--insecure", f"--port={port}"],
        (folder / "link.log").open("w"),
    )
    processes.append(link)
    until_open(port)
    for node in range(NODES):
        arguments = ["--insecure", f"--superlink=127.0.0.1:{port}"]
        arguments.append(f"--port={free_port()}")
        log = (folder / f"node{node}.log").open("w")
        processes.append(start(folder, "supernode", arguments, log))
    before = processor_seconds(link.pid)
    run = start(folder, "flwr", ["run", str(app), "here", "--stream"], (folder / "run.log").open("w"))
    processes.append(run)
    ends, deadline = {}, time.monotonic() + 60 + 30 * rounds
    while len(ends) < rounds and time.monotonic() < deadline:
        time.sleep(0.5)
        for log in folder.glob("*.log"):
            for found in re.finditer(r"ROUND (\d+) ([\d.]+) (\d+)", log.read_text()):
                ends[int(found[1])] = (float(found[2]), int(found[3]))
    if len(ends) < rounds:
        logs = "\n".join(f"{log.name}: {log.read_text()[-600:]}" for log in folder.glob("*.log"))
        sys.exit(f"Flower finished {len(ends)} of {rounds} rounds:\n{logs}")
    used = processor_seconds(link.pid) - before
    times = [ends[number][0] for number in sorted(ends)]
    lengths = sorted(b - a for a, b in zip(times, times[1:]))
    updates = sum(count for _, count in ends.values())
    return lengths[len(lengths) // 2], 1000 * used / updates


def main():
    rounds = int(sys.argv[1])
    folder, processes = pathlib.Path(tempfile.mkdtemp(prefix="florin-flower-")), []
    try:
        length, cost = measure(folder, rounds, processes)
    finally:
        for process in reversed(processes):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
    import flwr

    name = f"Flower {flwr.__version__}"
    print(json.dumps({"name": f"{name}: round of 4 SuperNodes, nothing trained", "value": 1000 * length, "unit": "ms"}))
    print(json.dumps({"name": f"{name}: SuperLink's processor time for an update", "value": cost, "unit": "ms"}))


if __name__ == "__main__":
    main()
