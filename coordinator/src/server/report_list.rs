//! The reports of a task in short. A finished round may be archived in a blob, so that the summaries
//! that were read once stay in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::State;
use florin_protocol::{ReportSummary, RoundNumber, TaskId};
use serde::Deserialize;

use super::App;
use super::error::{ApiError, ApiResult};
use super::extract::{PathParams, QueryParams};
use super::finished_rounds::finished_round;

/// Reports of one answer.
const LISTED_MAX: usize = 1_000;
/// Reports that one answer reads anew; the next request goes on behind them.
const READ_MAX: usize = 100;
/// Tasks whose summaries are in memory; the one that was asked for longest ago makes room.
const TASKS_MAX: usize = 32;
/// Summaries of a task in memory; the oldest round makes room.
const KNOWN_MAX: usize = 10_000;

/// The summaries of a task that were read. The lock is held while a request reads more, so that
/// concurrent ones read no round twice.
type KnownReports = Arc<tokio::sync::Mutex<BTreeMap<RoundNumber, ReportSummary>>>;

/// The summaries that were read, by task, with the number of the request that last asked for them.
#[derive(Debug, Default)]
pub(super) struct ReportLists {
    tasks: Mutex<BTreeMap<TaskId, (u64, KnownReports)>>,
    requests: AtomicU64,
}

impl ReportLists {
    fn of(&self, task: TaskId) -> KnownReports {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.len() >= TASKS_MAX && !tasks.contains_key(&task) {
            let oldest = tasks.iter().min_by_key(|(_, (asked, _))| *asked).map(|(task, _)| *task);
            oldest.and_then(|oldest| tasks.remove(&oldest));
        }
        let (asked, known) = tasks.entry(task).or_default();
        *asked = request;
        Arc::clone(known)
    }
}

/// The first round of a list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReportListQuery {
    #[serde(default)]
    from: u32,
}

/// Lists the reports of a task from a round on.
pub(super) async fn list(
    State(app): State<App>,
    PathParams(id): PathParams<TaskId>,
    QueryParams(ReportListQuery { from }): QueryParams<ReportListQuery>,
) -> ApiResult<Json<Vec<ReportSummary>>> {
    let reported = app.host().read(move |engine, _| engine.progress(id)).await??.reported;
    let known = app.inner.report_lists.of(id);
    let mut known = known.lock().await;
    let (mut listed, mut read) = (Vec::new(), 0_usize);
    for round in (from.max(1)..=reported).take(LISTED_MAX).map(RoundNumber) {
        let summary = if let Some(summary) = known.get(&round) {
            *summary
        } else if read == READ_MAX {
            break;
        } else {
            read = read.saturating_add(1);
            let take = |past: &florin_engine::state::ReportedRound| {
                ReportSummary::from_report(&past.report)
            };
            let summary = finished_round(&app, id, round, take)
                .await?
                .map_err(|error| ApiError::internal("the pay of a round has no sum", &error))?;
            if known.len() >= KNOWN_MAX {
                known.pop_first();
            }
            known.insert(round, summary);
            summary
        };
        listed.push(summary);
    }
    Ok(Json(listed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_task_that_was_asked_for_longest_ago_makes_room() {
        let lists = ReportLists::default();
        let task = |number| TaskId([number; 32]);
        let first = lists.of(task(0));
        for number in 1..=200 {
            lists.of(task(number));
            assert!(Arc::ptr_eq(&first, &lists.of(task(0))), "{number}");
        }
        assert_eq!(lists.tasks.lock().unwrap().len(), TASKS_MAX);
    }
}
