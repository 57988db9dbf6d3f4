//! `florin data show images:FOLDER`: the classes of a folder, the sizes of its images, and files that
//! cannot be read.

use florin_learning::data::{ImageSummary, Table, image_summaries};
use serde_json::json;

use super::show::{LabelCount, label_table, labels};
use crate::cli::DataShow;
use crate::failure::Exit;
use crate::progress::Progress;
use crate::show::{self, TextTable};

/// Most damaged files that the text output lists; `--json` lists all.
const DAMAGED_SHOWN_MAX: usize = 20;

/// The least, the median and the greatest of some sizes, in pixels.
#[derive(Debug, PartialEq)]
struct SizeRange {
    min: u32,
    median: u32,
    max: u32,
}

impl SizeRange {
    /// `None` for no sizes. Of an even number of sizes the median is the lower one of the two.
    fn new(mut sizes: Vec<u32>) -> Option<Self> {
        sizes.sort_unstable();
        let median = *sizes.get(sizes.len().saturating_sub(1) / 2)?;
        Some(Self { min: *sizes.first()?, median, max: *sizes.last()? })
    }
}

/// Prints a folder of images.
pub(super) fn run(arguments: &DataShow, table: &Table) -> anyhow::Result<Exit> {
    let images =
        Progress::during(format!("decoding {}", arguments.source), || image_summaries(table));
    let labels = labels(table, None);
    let side = |at: usize| {
        SizeRange::new(
            images.iter().filter_map(|image| image.sides.as_ref().ok().map(|s| s[at])).collect(),
        )
    };
    let sides = [("height", side(0)), ("width", side(1))];
    let damaged: Vec<(&ImageSummary, &String)> = images
        .iter()
        .filter_map(|image| image.sides.as_ref().err().map(|why| (image, why)))
        .collect();
    if arguments.json.json {
        print_json(arguments, &images, &labels, &sides, &damaged)?;
        return Ok(Exit::Done);
    }
    show::facts(&[
        ("source", arguments.source.to_string()),
        ("images", images.len().to_string()),
        ("labels", labels.len().to_string()),
        ("damaged", damaged.len().to_string()),
    ]);
    anstream::println!();
    let mut sizes = TextTable::new(&["pixels", ">min", ">median", ">max"]);
    for (name, range) in &sides {
        let Some(SizeRange { min, median, max }) = range else { continue };
        sizes.row([
            (*name).into(),
            min.to_string().into(),
            median.to_string().into(),
            max.to_string().into(),
        ]);
    }
    sizes.print();
    anstream::println!();
    label_table(&labels).print();
    for (image, why) in damaged.iter().take(DAMAGED_SHOWN_MAX) {
        show::hint(&format!("{}: {why}", image.file.display()));
    }
    if let Some(more @ 1..) = damaged.len().checked_sub(DAMAGED_SHOWN_MAX) {
        show::hint(&format!("{more} more damaged files: --json lists all."));
    }
    Ok(Exit::Done)
}

fn print_json(
    arguments: &DataShow,
    images: &[ImageSummary],
    labels: &[LabelCount],
    sides: &[(&str, Option<SizeRange>)],
    damaged: &[(&ImageSummary, &String)],
) -> anyhow::Result<()> {
    let names: Vec<&str> = labels.iter().map(|label| label.name.as_str()).collect();
    let counts: Vec<usize> = labels.iter().map(|label| label.rows).collect();
    let mut value = json!({
        "source": arguments.source.to_string(),
        "rows": images.len(),
        "classes": labels.len(),
        "class_names": names,
        "rows_by_label": counts,
        "damaged": damaged
            .iter()
            .map(|(image, why)| json!({ "file": image.file, "why": why }))
            .collect::<Vec<_>>(),
    });
    for (name, range) in sides {
        value[*name] = range.as_ref().map_or(
            serde_json::Value::Null,
            |range| json!({ "min": range.min, "median": range.median, "max": range.max }),
        );
    }
    show::json(&value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_the_lower_median() {
        let range = |sizes: &[u32]| SizeRange::new(sizes.to_vec());
        assert_eq!(range(&[]), None);
        assert_eq!(range(&[5]), Some(SizeRange { min: 5, median: 5, max: 5 }));
        assert_eq!(range(&[9, 1, 4, 7]), Some(SizeRange { min: 1, median: 4, max: 9 }));
    }
}
