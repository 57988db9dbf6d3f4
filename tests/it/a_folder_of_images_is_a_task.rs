//! Folders of images are the rows of a task: the buyer's holdout and each participant's data.

use std::ops::Range;
use std::path::Path;

use florin_learning::data::load;
use florin_learning::{DataSource, Dataset};
use image::{GrayImage, Luma};

use crate::support::{On, Process, TestMarket, TestPlan};

/// Sides of an image, in pixels: the digits, twice as large.
const SIDE: u32 = 16;

/// Writes rows of the digits into a folder for each class, as PNG or JPEG by turns.
fn write_images(digits: &Dataset, rows: Range<usize>, folder: &Path) {
    let most = digits.features().iter().copied().fold(0.0, f32::max);
    for row in rows {
        let class = folder.join(format!("digit{}", digits.labels()[row]));
        std::fs::create_dir_all(&class).unwrap();
        let pixel = |x: u32, y: u32| {
            let feature = digits.row(row)[(y / 2 * 8 + x / 2) as usize];
            Luma([(feature / most * 255.0) as u8])
        };
        let end = if row % 2 == 0 { "png" } else { "jpg" };
        GrayImage::from_fn(SIDE, SIDE, pixel).save(class.join(format!("{row}.{end}"))).unwrap();
    }
}

#[test]
fn images_are_encoded_trained_on_paid_and_audited() {
    let digits = load(&DataSource::Digits).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut plan = TestPlan::honest(On::Embedded, 2);
    plan.graph = Some(
        "kind = \"softmax\"\ninputs = 64\nclasses = 10\n[data]\nwidth = 64\nclasses = 10\n\
         image = { channels = 1, height = 8, width = 8, resize = 8 }\nscale = \"standard\"\n"
            .to_owned(),
    );
    let names: Vec<&str> = plan.participants.iter().map(|(name, _)| *name).collect();
    let market = TestMarket::open(plan);
    write_images(&digits, 1_497..1_797, &folder.path().join("holdout"));
    let holdout = format!("source = \"images:{}/holdout\"", folder.path().display());
    market.change_task(&[("source = \"digits\"", &holdout), ("1497..1797", "0..300")]);
    let task = market.publish();
    let mut all = vec![market.provider(task)];
    for (at, name) in names.into_iter().enumerate() {
        let own = folder.path().join(name);
        write_images(&digits, at * 499..(at + 1) * 499, &own);
        let mut call = market.participant_call(&market.url, task, name);
        for word in &mut call {
            if word == "digits" {
                *word = format!("images:{}", own.display());
            } else if word.contains("..") {
                *word = "0..499".to_owned();
            }
        }
        all.push(Process::start(market.folder(), name, &call));
    }
    all.iter_mut().for_each(Process::finish);
    let report = market.report(task, 2);
    let metrics = report.metrics.expect("the round was valued");
    assert!(metrics.correct_after * 10 > metrics.rows * 7, "the model learns: {metrics:?}");
    for name in ["ann", "ben", "cy"] {
        assert!(!report.account_totals[&market.account(name)].data.is_zero(), "{name}");
    }
    market.run_command(&["audit", &task.to_string(), "--engine", "reference"]).expect(0);
}
