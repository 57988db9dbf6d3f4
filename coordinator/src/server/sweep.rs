//! Garbage collection of incomplete uploads: their round has closed, their task has the blob it
//! waited for, or they have expired.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use tokio::time::{sleep, timeout};

use super::App;
use super::body::blocking;
use florin_engine::Engine;
use florin_store::partial::{Key, Whose};

/// Interval between two sweeps without a change of a task; a change triggers a sweep earlier.
const EVERY: Duration = Duration::from_secs(60);
/// Minimum pause between two sweeps.
const PAUSE: Duration = Duration::from_secs(1);

/// Removes obsolete uploads while the engine runs.
pub(crate) async fn sweep(app: App) {
    let mut changes = app.host().changes();
    loop {
        changes.mark_unchanged();
        let partials = app.host().partials();
        let keys = partials.keys();
        if !keys.is_empty() {
            let asked: BTreeSet<Key> = keys.iter().copied().collect();
            let kept = app.host().read(move |engine, _| {
                keys.into_iter().filter(|key| is_wanted(engine, key)).collect::<BTreeSet<_>>()
            });
            let Ok(kept) = kept.await else { return };
            let (partials, age_max) = (partials.clone(), app.config().uploads.age_max());
            let swept = blocking(move || {
                // Uploads that began after the query are not judged.
                let wanted = |key: &Key| kept.contains(key) || !asked.contains(key);
                partials.sweep(SystemTime::now(), age_max, wanted)
            });
            if let Ok(number @ 1..) = swept.await {
                tracing::info!(number, "obsolete incomplete uploads removed");
            }
        }
        sleep(PAUSE).await;
        if let Ok(Err(_)) = timeout(EVERY, changes.changed()).await {
            return;
        }
    }
}

fn is_wanted(engine: &Engine, key: &Key) -> bool {
    match key.whose {
        Whose::Sender(round, sender) => engine.awaits_update(key.task, round, sender),
        Whose::Token(_) => engine.awaits_blobs(key.task),
    }
}
