//! `florin data show`: the columns and labels of a source, and their encoding in a new task.

use florin_learning::DataSource;
use florin_learning::data::{
    Cells, ColumnProfile, ColumnSummary, FitError, IgnoredReason, NumberSummary, RowEncoder, Table,
    TableProfile, Treatment, default_scale, fit, load_table,
};
use serde_json::{Value, json};

use super::{show_images, show_text};
use crate::cli::DataShow;
use crate::failure::Exit;
use crate::progress::Progress;
use crate::show::{self, TextTable};
use crate::task_file::ignored_because;

/// Most columns that the text output lists; `--json` lists all.
const COLUMNS_SHOWN_MAX: usize = 60;
/// Most categories of a column, and most labels, that the text output lists.
const TEXTS_SHOWN_MAX: usize = 12;
const LABELS_SHOWN_MAX: usize = 40;

pub(super) fn run(arguments: &DataShow) -> anyhow::Result<Exit> {
    let source = &arguments.source;
    if let (DataSource::Text { file, length: None }, Some(tokenizer)) =
        (source, &arguments.tokenizer)
    {
        return show_text::run(arguments, file, tokenizer);
    }
    let table = Progress::during(format!("reading {source}"), || load_table(source))?;
    if let DataSource::Images { .. } = source {
        return show_images::run(arguments, &table);
    }
    let profile = TableProfile::new(&table);
    let encoder = fit(&table, &profile, default_scale(&table));
    let labels = labels(&table, encoder.as_ref().ok());
    if arguments.json.json {
        let mut value = as_json(&table, &profile, &encoder, &labels);
        value["source"] = source.to_string().into();
        show::json(&value)?;
        return Ok(Exit::Done);
    }
    let mut facts = vec![
        ("source", source.to_string()),
        ("rows", table.rows().to_string()),
        ("columns", table.columns().to_string()),
        ("labels", labels.len().to_string()),
    ];
    match &encoder {
        Ok(encoder) => facts.push(("encoded", format!("{} features per row", encoder.width()))),
        Err(error) => facts.push(("problem", error.to_string())),
    }
    if profile.constant_features > 0 {
        facts.push(("constant", format!("{} features have one value", profile.constant_features)));
    }
    show::facts(&facts);
    anstream::println!();
    column_table(&profile).print();
    if let Some(more @ 1..) = profile.columns.len().checked_sub(COLUMNS_SHOWN_MAX) {
        show::hint(&format!("{more} more columns: --json lists all."));
    }
    anstream::println!();
    label_table(&labels).print();
    Ok(Exit::Done)
}

/// A label: its name in the source, and its number of rows.
pub(super) struct LabelCount {
    pub(super) name: String,
    pub(super) rows: usize,
}

/// The labels with their rows: in the order of the task's classes, or of the source if its labels are
/// no classes.
pub(super) fn labels(table: &Table, encoder: Option<&RowEncoder>) -> Vec<LabelCount> {
    let mut counts: Vec<LabelCount> = Vec::new();
    match table.labels() {
        Cells::Texts { texts, cells } => {
            counts.extend(texts.iter().map(|text| LabelCount { name: text.clone(), rows: 0 }));
            cells.iter().flatten().for_each(|text| counts[*text as usize].rows += 1);
            counts.retain(|count| count.rows > 0);
            counts.sort_by(|a, b| a.name.cmp(&b.name));
        }
        Cells::Numbers(numbers) => {
            let mut sorted: Vec<f64> = numbers.iter().copied().filter(|n| !n.is_nan()).collect();
            sorted.sort_unstable_by(f64::total_cmp);
            for label in sorted.chunk_by(|a, b| a == b) {
                counts.push(LabelCount { name: label[0].to_string(), rows: label.len() });
            }
        }
    }
    // Whole labels that have no rows are classes as well.
    if let Some(encoder) = encoder.filter(|encoder| encoder.class_names.is_empty()) {
        let rows_of = |name: &str| counts.iter().find(|c| c.name == name).map_or(0, |c| c.rows);
        let all = (0..encoder.classes).map(|label| label.to_string());
        return all.map(|name| LabelCount { rows: rows_of(&name), name }).collect();
    }
    counts
}

pub(super) fn label_table(labels: &[LabelCount]) -> TextTable {
    let mut table = TextTable::new(&["label", ">rows"]);
    for label in labels.iter().take(LABELS_SHOWN_MAX) {
        table.row([(&label.name).into(), label.rows.into()]);
    }
    if let Some(more @ 1..) = labels.len().checked_sub(LABELS_SHOWN_MAX) {
        table.row([format!("and {more} more").into()]);
    }
    table
}

fn column_table(profile: &TableProfile) -> TextTable {
    let titles = ["column", ">min", ">mean", ">max", ">sd", ">missing", "encoding"];
    let mut table = TextTable::new(&titles);
    for column in profile.columns.iter().take(COLUMNS_SHOWN_MAX) {
        let range = column.summary.range();
        let cell = |value: fn(&NumberSummary) -> f64| {
            range.as_ref().map_or(String::new(), |r| number(value(r)))
        };
        table.row([
            (&column.name).into(),
            cell(|r| r.min).into(),
            cell(|r| r.mean).into(),
            cell(|r| r.max).into(),
            cell(|r| r.sd).into(),
            column.missing.into(),
            encoding(column).into(),
        ]);
    }
    table
}

/// The encoding of a column in a new task.
fn encoding(column: &ColumnProfile) -> String {
    match (&column.treatment, &column.summary) {
        (Treatment::Ignored(reason), _) => format!("ignored: {}", ignored_because(reason)),
        (Treatment::OneHot, ColumnSummary::Categorical { texts }) => {
            let shown: Vec<&str> = texts.iter().take(TEXTS_SHOWN_MAX).map(String::as_str).collect();
            let more = if texts.len() > shown.len() { ", …" } else { "" };
            format!("one-hot {}: {}{more}", texts.len(), shown.join(", "))
        }
        _ => "scaled".to_owned(),
    }
}

/// A number with five significant digits.
fn number(value: f64) -> String {
    const DIGITS: i32 = 5;
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor() as i32;
    if !(-4..9).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    let places = usize::try_from(DIGITS - 1 - magnitude).unwrap_or(0);
    let text = format!("{value:.places$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn as_json(
    table: &Table,
    profile: &TableProfile,
    encoder: &Result<RowEncoder, FitError>,
    labels: &[LabelCount],
) -> Value {
    let columns: Vec<Value> = profile.columns.iter().map(column_json).collect();
    let counts: Vec<usize> = labels.iter().map(|label| label.rows).collect();
    let names: Vec<&str> = labels.iter().map(|label| label.name.as_str()).collect();
    json!({
        "rows": table.rows(),
        "width": table.columns(),
        "encoded_width": encoder.as_ref().ok().map(RowEncoder::width),
        "classes": labels.len(),
        "class_names": names,
        "rows_by_label": counts,
        "constant_features": profile.constant_features,
        "columns": columns,
        "problem": encoder.as_ref().err().map(ToString::to_string),
    })
}

fn column_json(column: &ColumnProfile) -> Value {
    let (kind, range, texts) = match &column.summary {
        ColumnSummary::Numeric(range) => ("numeric", *range, None),
        ColumnSummary::Categorical { texts } => ("categorical", None, Some(texts)),
    };
    let (treatment, duplicate_of) = match &column.treatment {
        Treatment::Scaled => ("scaled", None),
        Treatment::OneHot => ("one_hot", None),
        Treatment::Ignored(reason) => match reason {
            IgnoredReason::Constant => ("ignored_constant", None),
            IgnoredReason::Duplicate(other) => ("ignored_duplicate", Some(other)),
            IgnoredReason::RowNumber => ("ignored_row_number", None),
            IgnoredReason::ManyTexts => ("ignored_many_texts", None),
        },
    };
    json!({
        "name": column.name,
        "kind": kind,
        "missing": column.missing,
        "min": range.map(|r| r.min),
        "mean": range.map(|r| r.mean),
        "max": range.map(|r| r.max),
        "sd": range.map(|r| r.sd),
        "categories": texts,
        "treatment": treatment,
        "duplicate_of": duplicate_of,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_five_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (-12.345_678, "-12.346"),
            (654.889_104, "654.89"),
            (1_234_567.0, "1234567"),
            (0.003_921_568, "0.0039216"),
            (1e-7, "1.000e-7"),
            (2.5e12, "2.500e12"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
