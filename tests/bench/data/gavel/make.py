"""Writes alone.csv and packed.csv from Gavel's throughputs: make.py simulation_throughputs.json"""

import ast
import csv
import json
import pathlib
import sys

KINDS = ["v100", "p100", "k80"]
COUNTS = [1, 2, 4, 8]
HERE = pathlib.Path(__file__).parent

with open(sys.argv[1]) as file:
    tables = json.load(file)

# Jobs in the order of the V100's table; their position is the class of packed.csv.
jobs = [ast.literal_eval(key) for key in tables["v100"]]
models = [model for model, count in jobs if count == 1]

with open(HERE / "alone.csv", "w", newline="") as file:
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["kind", "class", "model", *(f"steps_per_s_{count}" for count in COUNTS)])
    for kind in KINDS:
        alone = {ast.literal_eval(key): row["null"] for key, row in tables[kind].items()}
        for number, model in enumerate(models):
            steps = [alone.get((model, count), 0) for count in COUNTS]
            # A count that Gavel did not measure, or on which the job does not fit, is empty.
            cells = [f"{value:.4f}" if value > 0 else "" for value in steps]
            rows.writerow([kind, number, model, *cells])

with open(HERE / "packed.csv", "w", newline="") as file:
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["kind", "class", "other", "rate_milli", "other_rate_milli"])
    for kind in KINDS:
        table = {ast.literal_eval(key): row for key, row in tables[kind].items()}
        for one, model in enumerate(models):
            for two in range(one, len(models)):
                row = table[(model, 1)]
                both = row.get(str((models[two], 1)))
                # Pairs that do not fit on one device have no throughput.
                if both is None or min(both) <= 0:
                    continue
                alone = [row["null"], table[(models[two], 1)]["null"]]
                parts = [int(1000 * value / whole) for value, whole in zip(both, alone)]
                parts = [min(1000, max(1, part)) for part in parts]
                rows.writerow([kind, one, two, *parts])
