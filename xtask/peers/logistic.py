"""Prints the test accuracy of scikit-learn's LogisticRegression for each split of a table.

    logistic.py FOLDER

Every folder in FOLDER has `train.csv` and `test.csv`, with a header and the class in the last
column. Numbers are standardised and their gaps filled with the median; texts become one column of
zeros and ones for each of their values.
"""

import pathlib
import sys
import warnings

import pandas
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

warnings.filterwarnings("ignore")
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    if not (folder / "train.csv").is_file():
        continue
    train, test = (pandas.read_csv(folder / f"{part}.csv") for part in ("train", "test"))
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    texts = make_pipeline(
        SimpleImputer(strategy="constant", fill_value="missing"),
        OneHotEncoder(handle_unknown="ignore"),
    )
    columns = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (texts, make_column_selector(dtype_exclude="number")),
    )
    model = make_pipeline(columns, LogisticRegression(max_iter=5_000))
    label = train.columns[-1]
    model.fit(train.drop(columns=label), train[label].astype(str))
    print(folder.name, model.score(test.drop(columns=label), test[label].astype(str)))
