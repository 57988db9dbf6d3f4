//! `florin-bench page`: the page in a browser, and its cost for a coordinator with a thousand viewers.

mod viewers;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};
use florin_coordinator::page;
use serde::Deserialize;

use super::Measurement;
use super::server::market::BenchMarket;

/// The times that the browser measured, in milliseconds.
#[derive(Deserialize)]
struct BrowserTimes {
    paint: f64,
    market: f64,
    task: f64,
    all: f64,
    frame: f64,
}

pub(super) fn run() -> anyhow::Result<Vec<Measurement>> {
    let kib = |bytes: usize| bytes as f64 / 1_000.0;
    let (files, module) = page::transfer_bytes();
    let mut rows = vec![
        Measurement::at_most("files of the page, compressed", kib(files), "KB", 200.0),
        Measurement::plain("  the WebAssembly, compressed", kib(module), "KB"),
    ];
    rows.extend(browser()?);
    rows.extend(viewers::measure()?);
    Ok(rows)
}

/// The times in a browser; no row where there is none.
fn browser() -> anyhow::Result<Vec<Measurement>> {
    let scripts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../page");
    ensure!(scripts.join("node_modules").is_dir(), "run `cargo xtask setup` first");
    let market = BenchMarket::open_with(0, &[], "")?;
    let output = Command::new("node")
        .current_dir(&scripts)
        .args(["measure.mjs", &market.url])
        .output()
        .context("node runs the browser")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if text.starts_with("SKIPPED") {
        eprintln!("{}", text.trim());
        return Ok(Vec::new());
    }
    ensure!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let times: BrowserTimes = serde_json::from_str(text.trim())?;
    Ok(vec![
        Measurement::at_most("first paint of the market, median", times.paint, "ms", 500.0),
        Measurement::at_most("  its view is drawn with its data", times.market, "ms", 500.0),
        Measurement::at_most(
            "a task of 1,000 rounds and 100 members, its last 40 drawn",
            times.task,
            "ms",
            500.0,
        ),
        Measurement::at_most("  all 1,000 drawn", times.all, "ms", 500.0),
        Measurement::at_most(
            "  a frame while it scrolls, 95th percentile",
            times.frame,
            "ms",
            50.0,
        ),
    ])
}
