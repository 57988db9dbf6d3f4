"""Writes the real tables of `cargo xtask bench pay` as CSV files with numeric columns.

    tables.py FOLDER

The tables come with scikit-learn and palmerpenguins. Rows with missing values are left out; text
columns become one column of zeros and ones for each of their values. The folder `raw` in FOLDER has
the tables as their packages give them: with names, texts and missing values.
"""

import csv
import pathlib
import sys

import numpy
import palmerpenguins
import sklearn.datasets


def write(folder, name, features, labels):
    with open(folder / f"{name}.csv", "w", newline="") as file:
        out = csv.writer(file)
        out.writerow([f"f{i}" for i in range(features.shape[1])] + ["label"])
        for row, label in zip(features, labels):
            out.writerow([repr(float(value)) for value in row] + [int(label)])


def one_hot(column):
    values = sorted(set(column))
    return numpy.array([[float(cell == value) for value in values] for cell in column])


def penguins():
    rows = palmerpenguins.load_penguins().dropna()
    numbers = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
    parts = [rows[numbers].to_numpy(float), one_hot(rows["island"]), one_hot(rows["sex"])]
    species = sorted(set(rows["species"]))
    return numpy.hstack(parts), [species.index(name) for name in rows["species"]]


def write_raw(folder, name, data):
    table = data.frame
    if len(data.target_names) and name != "digits":
        table["target"] = [data.target_names[label] for label in table["target"]]
    table.to_csv(folder / f"{name}.csv", index=False)


folder = pathlib.Path(sys.argv[1])
raw = folder / "raw"
raw.mkdir()
for name, load in [
    ("digits16", sklearn.datasets.load_digits),
    ("cancer", sklearn.datasets.load_breast_cancer),
    ("wine", sklearn.datasets.load_wine),
    ("iris", sklearn.datasets.load_iris),
]:
    data = load()
    write(folder, name, data.data, data.target)
write(folder, "penguins", *penguins())
for name, load in [
    ("digits", sklearn.datasets.load_digits),
    ("cancer", sklearn.datasets.load_breast_cancer),
    ("wine", sklearn.datasets.load_wine),
    ("iris", sklearn.datasets.load_iris),
]:
    write_raw(raw, name, load(as_frame=True))
rows = palmerpenguins.load_penguins()
rows = rows[[name for name in rows if name != "species"] + ["species"]]
rows.to_csv(raw / "penguins.csv", index=False)
