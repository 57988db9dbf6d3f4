//! The markets of the benchmark: real tables, each with two models.

use std::fmt;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use florin_sim::Scenario;

use super::attack::Attack;

/// Data for a market, and how its rows are divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub(super) name: &'static str,
    /// The CSV file in the folder of tables; `None` for the handwritten digits.
    file: Option<&'static str>,
    /// Whether the features are standardised.
    pub(super) scaled: bool,
    /// Number of honest members.
    pub(super) members: u32,
    /// Rows of each member.
    rows: u32,
    rounds: u32,
    rows_per_round: u32,
    test_rows: u32,
    hidden: u32,
}

/// A table and a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Market {
    pub(super) table: Table,
    /// A network with one hidden layer; otherwise softmax regression.
    pub(super) is_mlp: bool,
}

const DIGITS: Table = Table {
    name: "digits",
    file: None,
    scaled: true,
    members: 7,
    rows: 90,
    rounds: 10,
    rows_per_round: 70,
    test_rows: 100,
    hidden: 64,
};

const CANCER: Table = Table {
    name: "cancer",
    file: Some("cancer.csv"),
    members: 6,
    rows: 30,
    rounds: 8,
    rows_per_round: 20,
    hidden: 32,
    ..DIGITS
};

/// The tables. Three of them also as they are, without scaling.
const TABLES: [Table; 9] = [
    DIGITS,
    CANCER,
    WINE,
    Table {
        name: "penguins",
        file: Some("penguins.csv"),
        rows: 18,
        rows_per_round: 12,
        test_rows: 50,
        ..WINE
    },
    Table { name: "iris", file: Some("iris.csv"), rows: 8, rows_per_round: 5, ..WINE },
    Table { name: "digits 0-16", file: Some("digits16.csv"), ..DIGITS },
    Table { name: "digits raw", file: Some("digits16.csv"), scaled: false, ..DIGITS },
    Table { name: "cancer raw", scaled: false, ..CANCER },
    Table { name: "wine raw", scaled: false, ..WINE },
];

const WINE: Table = Table {
    name: "wine",
    file: Some("wine.csv"),
    scaled: true,
    members: 6,
    rows: 10,
    rounds: 8,
    rows_per_round: 6,
    test_rows: 30,
    hidden: 32,
};

/// All markets, each table with softmax regression and with a network.
pub(super) fn markets() -> Vec<Market> {
    let models = |table| [false, true].map(|is_mlp| Market { table, is_mlp });
    TABLES.into_iter().flat_map(models).collect()
}

impl fmt::Display for Market {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.table.name, if self.is_mlp { "MLP" } else { "softmax" })
    }
}

impl Market {
    /// The scenario of this market under an attack; the tables are in `folder`.
    pub(super) fn scenario(&self, attack: &Attack, folder: &Path) -> anyhow::Result<Scenario> {
        let Table { rounds, rows_per_round, members, rows, test_rows, hidden, .. } = self.table;
        let judged = attack.rows_per_round.unwrap_or(rows_per_round);
        let hidden = if self.is_mlp { format!("[{hidden}]") } else { "[]".to_owned() };
        let mut text = format!(
            "name = 'pay'\nquestion = 'What does each member earn?'\nrounds = {rounds}\n\
             [learning]\nhidden = {hidden}\nholdout_rows = {}\nholdout_rows_per_round = {judged}\n\
             test_rows = {test_rows}\nholdout_label_noise = {}\n",
            rows_per_round * rounds,
            attack.holdout_label_noise,
        );
        if let Some(file) = self.table.file {
            let scale = if self.table.scaled { "standard" } else { "none" };
            write!(
                text,
                "[learning.table]\nfile = '{file}'\nlabel = 'label'\nscale = '{scale}'\n"
            )?;
        }
        write!(
            text,
            "[task]\nbudget = 1000\nper_nat_max = 1000\ncross_check_pairs = 1\n\
             confidence_z = {}\nbond_min = 5\n\
             bond_per_row = 0.1\ndebit_max = 5\n\
             [population.honest]\ncount = {members}\nrows = [{rows}, {rows}]\n",
            attack.confidence_z,
        )?;
        if let Some(taken) = attack.earlier_task {
            let task = text.find("[task]\n").context("the scenario has buyer's terms")?;
            text.insert_str(task + "[task]\n".len(), &format!("earlier_task = '{taken}'\n"));
        }
        if let Some(group) = attack.attacker {
            write!(text, "[population.attacker]\nrows = [{rows}, {rows}]\n{group}\n")?;
        }
        Ok(Scenario::read_in(folder, &text, &[])?)
    }
}
