//! Exports request spans to an OpenTelemetry collector (OTLP over HTTP), if the settings name one.
//!
//! Spans wait in a bounded queue for a dedicated thread and are dropped when the queue is full. A
//! slow or unreachable collector therefore delays no request, and is logged once.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;

use crate::log::LogLayer;

/// Maximum number of queued spans.
const QUEUE_MAX: usize = 4_096;
/// Maximum number of spans per request to the collector.
const BATCH_MAX: usize = 512;
/// Maximum delay of a span, to batch it with others.
const DELAY: Duration = Duration::from_secs(1);
/// Timeout of a request to the collector.
const SEND_TIME: Duration = Duration::from_secs(5);
/// Time for the last spans when the program exits.
const LAST_TIME: Duration = Duration::from_secs(2);
/// Maximum size of a collector's response, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// The only exported spans: one for each request.
const SPAN: &str = "request";

/// The exporter of spans.
pub(crate) struct OtlpExport(SdkTracerProvider);

impl OtlpExport {
    /// Creates an exporter to the collector at this URL, such as `http://HOST:4318`. No request is
    /// sent yet.
    pub(crate) fn new(url: &str) -> anyhow::Result<Self> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new())
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}/v1/traces", url.trim_end_matches('/')))
            .with_timeout(SEND_TIME)
            .build()
            .with_context(|| format!("otlp.url = {url}"))?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE_MAX)
            .with_max_export_batch_size(BATCH_MAX)
            .with_scheduled_delay(DELAY)
            .build();
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
        let resource = Resource::builder_empty().with_service_name("florin-coordinator").build();
        let provider = SdkTracerProvider::builder();
        Ok(Self(provider.with_resource(resource).with_span_processor(processor).build()))
    }

    /// The layer of the log that exports spans.
    pub(crate) fn layer(&self) -> LogLayer {
        let tracer = self.0.tracer("florin");
        let wanted = filter_fn(|what| what.is_span() && what.name() == SPAN);
        tracing_opentelemetry::layer().with_tracer(tracer).with_filter(wanted).boxed()
    }

    /// Sends the queued spans, with a short timeout.
    pub(crate) fn shutdown(&self) {
        if let Err(error) = self.0.shutdown_with_timeout(LAST_TIME) {
            tracing::debug!(%error, "the last spans were not sent");
        }
    }
}

/// The HTTP client of the exporter's thread.
#[derive(Debug)]
struct Collector {
    agent: ureq::Agent,
    /// Whether the log already contains a warning that the collector does not respond.
    is_failure_logged: AtomicBool,
}

impl Collector {
    fn new() -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(SEND_TIME));
        Self { agent: config.build().into(), is_failure_logged: AtomicBool::new(false) }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let at = request.uri().clone();
        let answer = self.agent.run(request.map(|body| body.to_vec())).map_err(HttpError::from);
        let answer = answer.and_then(|answer| {
            let (parts, mut body) = answer.into_parts();
            let body = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
            Ok(Response::from_parts(parts, Bytes::from(body)))
        });
        let trouble = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("status {}", answer.status())),
            Err(error) => Some(error.to_string()),
        };
        match trouble {
            None => self.is_failure_logged.store(false, Ordering::Relaxed),
            Some(why) if !self.is_failure_logged.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%at, why, "the collector does not accept spans; they are dropped \
                    until it does");
            }
            Some(_) => {}
        }
        answer
    }
}

type ExportFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

impl HttpClient for Collector {
    /// Blocks: the exporter runs in its own thread.
    fn send_bytes<'life0, 'async_trait>(
        &'life0 self,
        request: Request<Bytes>,
    ) -> ExportFuture<'async_trait>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(ready(self.send(request)))
    }
}
