//! The stream of changes of tasks, for pages that stay open: server-sent events.
//!
//! One task of the runtime reads the progress of the tasks that changed, a few times per second at
//! most, and writes each event once; every stream forwards the same bytes. A stream that is too slow
//! ends, and its reader connects again.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use florin_protocol::{ErrorCode, TaskId, TaskProgress};
use futures_util::stream;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};
use tokio::time::{Instant, sleep};

use super::App;
use super::error::{ApiError, ApiResult};
use super::extract::QueryParams;
use crate::config::WAIT_MS_MAX;

/// Open streams of one coordinator.
const STREAMS_MAX: usize = 2_048;
/// Events that a slow stream may lag behind.
const BACKLOG_MAX: usize = 64;
/// Least time between two events.
const INTERVAL: Duration = Duration::from_millis(250);
/// The same for each open stream: a thousand streams are written a thousand times in a second, and
/// more of them not more often.
const INTERVAL_OF_STREAM: Duration = Duration::from_millis(1);

/// Time after which a reader opens the next stream, in milliseconds.
const RETRY_MS: u64 = 250;

/// The content type of server-sent events.
pub(super) const EVENT_STREAM: &str = "text/event-stream";

/// The streams of one coordinator.
pub(super) struct EventStreams {
    places: Arc<Semaphore>,
    sender: OnceLock<broadcast::Sender<Bytes>>,
}

impl EventStreams {
    pub(super) fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(STREAMS_MAX)), sender: OnceLock::new() }
    }

    /// The events from now on. The first call starts the task that writes them.
    fn subscribe(&self, app: &App) -> broadcast::Receiver<Bytes> {
        let start = || {
            let (sender, _) = broadcast::channel(BACKLOG_MAX);
            tokio::spawn(write_events(app.clone(), sender.clone()));
            sender
        };
        self.sender.get_or_init(start).subscribe()
    }
}

/// Writes an event for each change, until the coordinator ends.
async fn write_events(app: App, sender: broadcast::Sender<Bytes>) {
    let (mut changes, mut closing) = (app.host().changes(), app.inner.closing.subscribe());
    let mut known = changes.borrow_and_update().clone();
    loop {
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            _ = closing.wait_for(|closing| *closing) => return,
        }
        let streams = u32::try_from(sender.receiver_count()).unwrap_or(u32::MAX);
        sleep(INTERVAL.max(INTERVAL_OF_STREAM.saturating_mul(streams))).await;
        let now = changes.borrow_and_update().clone();
        let differs = |(id, sequence): &(&TaskId, &u64)| known.get(id) != Some(sequence);
        let changed: Vec<TaskId> = now.iter().filter(differs).map(|(id, _)| *id).collect();
        known = now;
        // Without a stream there is nothing to read.
        if sender.receiver_count() > 0
            && let Ok(event) = event(&app, changed).await
        {
            let _ = sender.send(event);
        }
    }
}

/// The event with the progress of tasks.
async fn event(app: &App, tasks: Vec<TaskId>) -> ApiResult<Bytes> {
    let progress: BTreeMap<TaskId, TaskProgress> = app
        .host()
        .read(move |engine, _| {
            let progress = |id: TaskId| Some((id, engine.progress(id).ok()?));
            tasks.into_iter().filter_map(progress).collect()
        })
        .await?;
    let data = serde_json::to_string(&progress)
        .map_err(|error| ApiError::internal("an event cannot be written", &error))?;
    Ok(format!("retry: {RETRY_MS}\nevent: tasks\ndata: {data}\n\n").into())
}

/// How long a stream may last.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    #[serde(default)]
    wait_ms: u64,
}

/// One stream.
struct EventReader {
    app: App,
    events: broadcast::Receiver<Bytes>,
    /// The first event: the progress of all tasks.
    first: Option<Bytes>,
    until: Instant,
    _place: OwnedSemaphorePermit,
}

impl EventReader {
    /// The next event; `None` at the end of the stream.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if let Some(first) = self.first.take() {
            return Some((Ok(first), self));
        }
        let mut event = None;
        let Self { app, events, until, .. } = &mut self;
        let received = async {
            event = events.recv().await.ok();
            event.is_some()
        };
        app.wait_for(*until, received).await;
        event.map(|event| (Ok(event), self))
    }
}

/// Sends the progress of all tasks, and then of each that changes, for `wait_ms`.
pub(super) async fn stream(
    State(app): State<App>,
    QueryParams(EventsQuery { wait_ms }): QueryParams<EventsQuery>,
) -> ApiResult<Response> {
    let streams = &app.inner.events;
    let place = Arc::clone(&streams.places).try_acquire_owned().map_err(|_| {
        let message = format!(
            "{STREAMS_MAX} streams of events are open: poll /v1/tasks/{{id}}?after=… instead"
        );
        ApiError::new(ErrorCode::LimitReached, message)
    })?;
    // Before the tasks are read, so that no change is lost between the two.
    let events = streams.subscribe(&app);
    let all = app.host().changes().borrow().keys().copied().collect();
    let first = Some(event(&app, all).await?);
    let until = Instant::now() + Duration::from_millis(wait_ms.min(WAIT_MS_MAX));
    let reader = EventReader { app: app.clone(), events, first, until, _place: place };
    let headers = [(header::CONTENT_TYPE, EVENT_STREAM), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(stream::unfold(reader, EventReader::next))).into_response())
}
