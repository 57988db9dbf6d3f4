//! Unfinished uploads whose time is over: their round has closed, their task has what it waited for, or nobody came back.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use tokio::time::{sleep, timeout};

use super::App;
use super::body::blocking;
use florin_engine::Engine;
use florin_store::partial::{Key, Whose};

/// How often it is looked whether something is too old; a change of a task is looked at sooner.
const EVERY: Duration = Duration::from_secs(60);
/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// Removes what is over, for as long as the engine runs.
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
                // What came since it was asked for is not judged.
                let wanted = |key: &Key| kept.contains(key) || !asked.contains(key);
                partials.sweep(SystemTime::now(), age_max, wanted)
            });
            if let Ok(number @ 1..) = swept.await {
                tracing::info!(number, "unfinished uploads whose time is over were removed");
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
