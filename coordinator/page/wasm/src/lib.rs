//! The computations of the coordinator's page in a browser: the checks of a report and of a claim, by the
//! protocol's own code, and the charts. `cargo xtask page` compiles it to `florin.wasm`.
//!
//! The page writes a request as JSON into [`reserve`]d memory and [`call`]s; the answer is JSON, too.
//! All state is one buffer.
//!
//! | `call` | answer |
//! |---|---|
//! | `check_round` | the digest of a report, and each line that differs from its recomputation |
//! | `check_task` | whether the terms of a task are those of its id |
//! | `check_contracts` | whether the identity of a market is that of its contracts |
//! | `statement` | the amounts of an account in a report, and their reasons in words |
//! | `check_claim` | whether the totals of an account are in a claim tree |
//! | `check_order` | what the records of an order prove: award, price, deliveries, losses, end |
//! | `market_statistics` | prices, and providers with their time at work, of such proven leases |
//! | `line_plot`, `scatter_plot`, `stacked_bars`, `share_bar`, `error_bars` | a chart as SVG |
//!
//! An answer to a request that cannot be read is `{"error": "…"}`.

mod chart;
mod check;
mod orders;

use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};

/// Longest request, in bytes. A report of the largest round has fewer.
const REQUEST_BYTES_MAX: usize = 64 * 1024 * 1024;

static BUFFER: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// A request of the page.
#[derive(Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
enum Request {
    CheckRound(Box<check::RoundDocuments>),
    CheckTask(Box<check::TaskDocuments>),
    CheckClaim(check::ClaimDocuments),
    CheckContracts(check::ContractsDocument),
    Statement(Box<check::StatementRequest>),
    CheckOrder(Box<orders::OrderDocuments>),
    MarketStatistics(orders::LeasesDocument),
    LinePlot(chart::LinePlot),
    ScatterPlot(chart::ScatterPlot),
    StackedBars(chart::StackedBars),
    ShareBar(chart::ShareBar),
    ErrorBars(chart::ErrorBars),
}

/// Answers a request: JSON in, JSON out.
#[must_use]
pub fn answer(request: &[u8]) -> Value {
    match serde_json::from_slice(request) {
        Ok(Request::CheckRound(round)) => round.check(),
        Ok(Request::CheckTask(task)) => task.check(),
        Ok(Request::CheckClaim(claim)) => claim.check(),
        Ok(Request::CheckContracts(document)) => document.check(),
        Ok(Request::Statement(request)) => request.answer(),
        Ok(Request::CheckOrder(order)) => order.check(),
        Ok(Request::MarketStatistics(leases)) => leases.statistics(),
        Ok(Request::ScatterPlot(plot)) => json!({ "svg": plot.draw() }),
        Ok(Request::LinePlot(plot)) => json!({ "svg": plot.draw() }),
        Ok(Request::StackedBars(bars)) => json!({ "svg": bars.draw() }),
        Ok(Request::ShareBar(bar)) => json!({ "svg": bar.draw() }),
        Ok(Request::ErrorBars(bars)) => json!({ "svg": bars.draw() }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}

/// The address of `length` bytes for the next request; null if they are too many.
#[expect(unsafe_code, reason = "the page finds the function by its name; no other crate has it")]
#[unsafe(no_mangle)]
pub extern "C" fn reserve(length: usize) -> *mut u8 {
    if length > REQUEST_BYTES_MAX {
        return std::ptr::null_mut();
    }
    let mut buffer = BUFFER.lock().unwrap_or_else(PoisonError::into_inner);
    buffer.clear();
    buffer.resize(length, 0);
    buffer.as_mut_ptr()
}

/// Replaces the request in the buffer by its answer, and returns the length of the answer.
#[expect(unsafe_code, reason = "the page finds the function by its name; no other crate has it")]
#[unsafe(no_mangle)]
pub extern "C" fn call() -> usize {
    let mut buffer = BUFFER.lock().unwrap_or_else(PoisonError::into_inner);
    *buffer = answer(&buffer).to_string().into_bytes();
    buffer.len()
}

/// The address of the answer.
#[expect(unsafe_code, reason = "the page finds the function by its name; no other crate has it")]
#[unsafe(no_mangle)]
pub extern "C" fn answer_address() -> *const u8 {
    BUFFER.lock().unwrap_or_else(PoisonError::into_inner).as_ptr()
}
