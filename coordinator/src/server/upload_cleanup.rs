//! Garbage collection of incomplete uploads: their round has closed, their task has the blob it
//! waited for, or they have expired.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use tokio::time::{sleep, timeout};

use super::App;
use super::body::blocking;
use florin_engine::Engine;
use florin_store::uploads::{UploadKey, UploadOwner};

/// Interval between two sweeps without a change of a task; a change triggers a sweep earlier.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum pause between two sweeps.
const SWEEP_PAUSE_MIN: Duration = Duration::from_secs(1);

/// Removes obsolete uploads while the engine runs.
pub(crate) async fn sweep(app: App) {
    let mut changes = app.host().changes();
    loop {
        changes.mark_unchanged();
        let partials = app.host().partials();
        let keys = partials.keys();
        if !keys.is_empty() {
            let asked: BTreeSet<UploadKey> = keys.iter().copied().collect();
            let needed = app.host().read(move |engine, _| {
                keys.into_iter().filter(|key| is_needed(engine, key)).collect::<BTreeSet<_>>()
            });
            let Ok(needed) = needed.await else { return };
            let (partials, age_max) = (partials.clone(), app.config().uploads.expiry());
            let swept = blocking(move || {
                // Uploads that began after the query are not judged.
                let wanted = |key: &UploadKey| needed.contains(key) || !asked.contains(key);
                partials.sweep(SystemTime::now(), age_max, wanted)
            });
            if let Ok(number @ 1..) = swept.await {
                tracing::info!(number, "obsolete incomplete uploads removed");
            }
        }
        sleep(SWEEP_PAUSE_MIN).await;
        if let Ok(Err(_)) = timeout(SWEEP_INTERVAL, changes.changed()).await {
            return;
        }
    }
}

fn is_needed(engine: &Engine, key: &UploadKey) -> bool {
    match key.owner {
        UploadOwner::Sender(round, sender) => engine.awaits_update(key.task, round, sender),
        UploadOwner::Token(_) => engine.awaits_blobs(key.task),
    }
}
