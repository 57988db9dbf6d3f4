//! Metrics of the server and the market, in the OpenMetrics text format.
//!
//! `docs/operations.md` explains each metric. No label contains text that a client chooses, so the
//! number of series is bounded by the routes times the status codes.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use florin_protocol::{Amount, ErrorCode, TaskPhase};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::connection_metrics::ConnectionMetrics;
use crate::host::{JournalMetrics, ValuationMetrics};
use florin_engine::state::PoolAmounts;
use florin_engine::{Effect, Engine};
use florin_store::bucket;

/// Bucket bounds of the latency histograms, in seconds.
const LATENCIES: [f64; 12] =
    [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// Every phase with its name in the API.
const PHASES: [(TaskPhase, &str); 8] = [
    (TaskPhase::AwaitingBlobs, "awaiting_blobs"),
    (TaskPhase::Enrolling, "enrolling"),
    (TaskPhase::Committing, "committing"),
    (TaskPhase::Revealing, "revealing"),
    (TaskPhase::Valuing, "valuing"),
    (TaskPhase::Settling, "settling"),
    (TaskPhase::Closing, "closing"),
    (TaskPhase::Done, "done"),
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabels {
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabel {
    pool: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

type Number = Gauge<f64, AtomicU64>;

/// The server's current load.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerLoad {
    /// Commands in the engine's channel.
    pub(super) queue: usize,
    /// In-flight uploads by kind.
    pub(super) uploads: [(&'static str, u64); 2],
    /// Bytes of uploads under validation, by kind.
    pub(super) upload_memory: [(&'static str, u64); 2],
}

/// The engine's state in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MarketSummary {
    tasks: Vec<(&'static str, i64)>,
    enrolled: i64,
    rounds: u64,
    abandoned: u64,
    unsettled: i64,
    pending_effects: [(&'static str, u64); 4],
    deposited: Vec<Amount>,
    paid: Vec<Amount>,
    escrow: Vec<Amount>,
}

impl MarketSummary {
    /// Summarises all tasks.
    pub(super) fn from_engine(engine: &Engine) -> Self {
        let tasks = || engine.state().tasks.values();
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let budget = |task: &florin_engine::state::TaskState| PoolAmounts {
            data: task.spec.budget.data,
            infrastructure: task.spec.budget.infrastructure,
        };
        let abandoned = tasks().flat_map(|task| &task.rounds).filter(|ended| !ended.settled);
        Self {
            tasks: PHASES
                .iter()
                .map(|(phase, name)| {
                    (*name, count(tasks().filter(|t| t.phase() == *phase).count()))
                })
                .collect(),
            enrolled: count(tasks().map(|task| task.enrolled.len()).fold(0, usize::saturating_add)),
            rounds: tasks().fold(0, |all, task| all.saturating_add(task.rounds.len() as u64)),
            abandoned: abandoned.count() as u64,
            unsettled: count(
                tasks().map(|t| t.pending_settlements.len()).fold(0, usize::saturating_add),
            ),
            pending_effects: pending_effect_counts(engine),
            deposited: pools(tasks().map(budget)),
            paid: pools(tasks().map(|task| task.paid)),
            escrow: pools(tasks().filter(|task| task.phase() != TaskPhase::Done).map(|task| {
                let budget = budget(task);
                let left = |all: Amount, paid| all.minus(paid).unwrap_or_default();
                PoolAmounts {
                    data: left(budget.data, task.paid.data),
                    infrastructure: left(budget.infrastructure, task.paid.infrastructure),
                }
            })),
        }
    }
}

/// Sums of data and infrastructure amounts; saturates at the largest amount.
fn pools(amounts: impl Iterator<Item = PoolAmounts>) -> Vec<Amount> {
    let most = Amount::from_units(u128::MAX);
    let add = |total: Amount, one| total.plus(one).unwrap_or(most);
    let total = amounts.fold(PoolAmounts::default(), |total, one| PoolAmounts {
        data: add(total.data, one.data),
        infrastructure: add(total.infrastructure, one.infrastructure),
    });
    vec![total.data, total.infrastructure]
}

/// All metrics of one server.
pub(super) struct Metrics {
    registry: Registry,
    connections: ConnectionMetrics,
    responses: Family<ResponseLabels, Counter>,
    duration_seconds: Family<RouteLabel, Histogram>,
    in_flight: Gauge,
    received: Counter,
    sent: Counter,
    rejections: Family<CodeLabel, Counter>,
    queue: Gauge,
    uploads: Family<KindLabel, Gauge>,
    upload_memory: Family<KindLabel, Gauge>,
    tasks: Family<PhaseLabel, Gauge>,
    enrolled: Gauge,
    rounds: Gauge,
    abandoned: Gauge,
    unsettled: Gauge,
    pending_effects: Family<KindLabel, Gauge>,
    deposited: Family<PoolLabel, Number>,
    paid: Family<PoolLabel, Number>,
    escrow: Family<PoolLabel, Number>,
    /// Held while the gauges are set and encoded, so that concurrent scrapes do not mix their
    /// values.
    scrape_lock: Mutex<()>,
}

/// The guard of an in-flight request.
pub(super) struct InFlightGuard(Gauge);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// Registers all metrics, at zero.
    pub(super) fn new(
        vitals: &JournalMetrics,
        valuations: &ValuationMetrics,
        bucket: &bucket::BucketMetrics,
    ) -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            connections: ConnectionMetrics::default(),
            responses: Family::default(),
            duration_seconds: Family::new_with_constructor(|| Histogram::new(LATENCIES)),
            in_flight: Gauge::default(),
            received: Counter::default(),
            sent: Counter::default(),
            rejections: Family::default(),
            queue: Gauge::default(),
            uploads: Family::default(),
            upload_memory: Family::default(),
            tasks: Family::default(),
            enrolled: Gauge::default(),
            rounds: Gauge::default(),
            abandoned: Gauge::default(),
            unsettled: Gauge::default(),
            pending_effects: Family::default(),
            deposited: Family::default(),
            paid: Family::default(),
            escrow: Family::default(),
            scrape_lock: Mutex::default(),
        };
        let mut registry = Registry::default();
        let all = registry.sub_registry_with_prefix("florin");
        metrics.register_server(all);
        metrics.register_market(all);
        register_journal(all, vitals);
        register_valuations(all, valuations);
        let what = "Requests to the bucket, by outcome";
        all.register("bucket_requests", what, bucket.requests.clone());
        metrics.registry = registry;
        metrics
    }

    fn register_server(&self, all: &mut Registry) {
        let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        all.register("build", "The version of this program", version);
        all.register("http_responses", "HTTP responses sent", self.responses.clone());
        let what = "Time from the request's headers to the response's headers";
        all.register_with_unit("http_duration", what, Unit::Seconds, self.duration_seconds.clone());
        let what = "Requests in flight, including long polls";
        all.register("http_in_flight", what, self.in_flight.clone());
        let what = "Bytes of request bodies";
        all.register_with_unit("http_request_body", what, Unit::Bytes, self.received.clone());
        let what = "Bytes of response bodies";
        all.register_with_unit("http_response_body", what, Unit::Bytes, self.sent.clone());
        all.register("rejections", "Rejected requests, by code", self.rejections.clone());
        let what = "Connections accepted within the limits";
        all.register("connections_accepted", what, self.connections.accepted.clone());
        all.register("connections_open", "Open connections", self.connections.open.clone());
        let what = "Connections refused or evicted: too many from one address, failed TLS \
                    handshake, evicted for another connection";
        all.register("connections_refused", what, self.connections.refused.clone());
        all.register("uploads_in_flight", "Uploads in flight", self.uploads.clone());
        let what = "Bytes of uploads under validation";
        all.register_with_unit("upload_memory_used", what, Unit::Bytes, self.upload_memory.clone());
        all.register("engine_queue_length", "Commands in the engine's queue", self.queue.clone());
    }

    fn register_market(&self, all: &mut Registry) {
        all.register("tasks", "Tasks by phase", self.tasks.clone());
        let what = "Participants enrolled, counted once for each task";
        all.register("enrolled", what, self.enrolled.clone());
        all.register("rounds_reported", "Rounds that have a report", self.rounds.clone());
        let what = "Rounds with a report that were abandoned without a valuation";
        all.register("rounds_abandoned", what, self.abandoned.clone());
        let what = "Settlements that are not final yet";
        all.register("settlements_pending", what, self.unsettled.clone());
        let what = "Effects of the engine that are not done: queued or running";
        all.register("pending_effects", what, self.pending_effects.clone());
        let what = "Florins deposited for all tasks ever published at this coordinator, rounded";
        all.register("deposited_florins", what, self.deposited.clone());
        let what = "Florins paid out by reports, rounded";
        all.register("paid_florins", what, self.paid.clone());
        let what = "Florins of unfinished tasks that no report has paid out, rounded";
        all.register("escrow_florins", what, self.escrow.clone());
    }

    /// Counts one response. `route` is the matched pattern, never the client's path.
    pub(super) fn record_response(&self, route: &str, status: u16, took: Duration) {
        let route = route.to_owned();
        self.duration_seconds
            .get_or_create(&RouteLabel { route: route.clone() })
            .observe(took.as_secs_f64());
        self.responses.get_or_create(&ResponseLabels { route, status }).inc();
    }

    pub(super) fn record_rejection(&self, code: ErrorCode) {
        self.rejections.get_or_create(&CodeLabel { code: code.as_str() }).inc();
    }

    pub(super) fn begin_request(&self) -> InFlightGuard {
        self.in_flight.inc();
        InFlightGuard(self.in_flight.clone())
    }

    pub(super) fn connections(&self) -> ConnectionMetrics {
        self.connections.clone()
    }

    pub(super) fn received(&self) -> Counter {
        self.received.clone()
    }

    pub(super) fn sent(&self) -> Counter {
        self.sent.clone()
    }

    /// Encodes all metrics with the current state of market and server.
    pub(super) fn encode(
        &self,
        picture: &MarketSummary,
        load: &ServerLoad,
    ) -> Result<String, std::fmt::Error> {
        let _alone = self.scrape_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.queue.set(whole(load.queue as u64));
        for (family, now) in [
            (&self.uploads, load.uploads.as_slice()),
            (&self.upload_memory, load.upload_memory.as_slice()),
            (&self.pending_effects, picture.pending_effects.as_slice()),
        ] {
            for (kind, count) in now {
                family.get_or_create(&KindLabel { kind }).set(whole(*count));
            }
        }
        for (phase, count) in &picture.tasks {
            self.tasks.get_or_create(&PhaseLabel { phase }).set(*count);
        }
        self.enrolled.set(picture.enrolled);
        self.rounds.set(whole(picture.rounds));
        self.abandoned.set(whole(picture.abandoned));
        self.unsettled.set(picture.unsettled);
        for (family, amounts) in [
            (&self.deposited, &picture.deposited),
            (&self.paid, &picture.paid),
            (&self.escrow, &picture.escrow),
        ] {
            for (pool, amount) in ["data", "infrastructure"].into_iter().zip(amounts) {
                family.get_or_create(&PoolLabel { pool }).set(florins(*amount));
            }
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn register_journal(all: &mut Registry, vitals: &JournalMetrics) {
    let what = "Events made durable since the start";
    all.register("journal_records", what, vitals.records.clone());
    let what = "Time to make a batch of events durable, including its fsync";
    all.register_with_unit("journal_commit", what, Unit::Seconds, vitals.commit_seconds.clone());
    let what = "Batches that the journal failed to append: a full or broken disk";
    all.register("journal_failures", what, vitals.failed_batches.clone());
}

fn register_valuations(all: &mut Registry, valuations: &ValuationMetrics) {
    let what = "Rounds replayed from the transcript of a provider";
    all.register("valuations_replayed", what, valuations.replayed.clone());
    let what = "Attempts to value a round in full";
    all.register("valuations_computed", what, valuations.computed.clone());
    let what = "Transcripts of providers that were not accepted";
    all.register("transcripts_refused", what, valuations.refused.clone());
}

/// The number of the engine's pending effects, by worker.
fn pending_effect_counts(engine: &Engine) -> [(&'static str, u64); 4] {
    let [mut disclosures, mut valuations, mut ledger, mut archives] = [0u64; 4];
    for effect in engine.pending_effects() {
        let kind = match effect {
            Effect::DiscloseRows { .. } => &mut disclosures,
            Effect::ValueRound { .. } => &mut valuations,
            Effect::PostSettlement { .. }
            | Effect::FinalizeSettlement { .. }
            | Effect::CloseTask { .. }
            | Effect::ProveDebits { .. }
            | Effect::ReturnBond { .. } => &mut ledger,
            Effect::ArchiveRound { .. } => &mut archives,
        };
        *kind = kind.saturating_add(1);
    }
    [
        ("disclosures", disclosures),
        ("valuations", valuations),
        ("ledger", ledger),
        ("archives", archives),
    ]
}

/// An amount in florins as a float, for graphs: rounded.
fn florins(amount: Amount) -> f64 {
    amount.to_string().parse().unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Encoded metrics with a value in every family.
    fn everything() -> String {
        let vitals = JournalMetrics::default();
        vitals.records.inc();
        let bucket = bucket::BucketMetrics::default();
        bucket.count_digest_mismatch();
        let valuations = ValuationMetrics::default();
        valuations.replayed.inc();
        let metrics = Metrics::new(&vitals, &valuations, &bucket);
        metrics.record_response("/v1/tasks/{id}", 200, Duration::from_millis(3));
        metrics.record_response("/v1/tasks/{id}", 404, Duration::from_millis(3));
        metrics.record_rejection(ErrorCode::UnknownTask);
        metrics.received().inc_by(40);
        metrics.connections().connection_opened();
        metrics.connections().refused("address_limit");
        let begun = metrics.begin_request();
        let picture = MarketSummary {
            tasks: vec![("enrolling", 2)],
            paid: vec!["1.5".parse().unwrap(), Amount::ZERO],
            deposited: vec![Amount::ZERO; 2],
            escrow: vec![Amount::ZERO; 2],
            pending_effects: [
                ("disclosures", 0),
                ("valuations", 2),
                ("ledger", 1),
                ("archives", 3),
            ],
            ..MarketSummary::default()
        };
        let (uploads, room) = ([("updates", 3), ("blobs", 0)], [("updates", 2_048), ("blobs", 0)]);
        let text = metrics
            .encode(&picture, &ServerLoad { queue: 7, uploads, upload_memory: room })
            .unwrap();
        drop(begun);
        assert!(
            metrics.encode(&picture, &ServerLoad::default()).unwrap().contains("http_in_flight 0")
        );
        text
    }

    #[test]
    fn every_metric_is_counted_and_encoded() {
        let text = everything();
        for line in [
            "florin_http_responses_total{route=\"/v1/tasks/{id}\",status=\"404\"} 1",
            "florin_http_duration_seconds_bucket{le=\"0.005\",route=\"/v1/tasks/{id}\"} 2",
            "florin_http_request_body_bytes_total 40",
            "florin_http_in_flight 1",
            "florin_connections_open 1",
            "florin_connections_refused_total{reason=\"address_limit\"} 1",
            "florin_uploads_in_flight{kind=\"updates\"} 3",
            "florin_upload_memory_used_bytes{kind=\"updates\"} 2048",
            "florin_rejections_total{code=\"UNKNOWN_TASK\"} 1",
            "florin_engine_queue_length 7",
            "florin_pending_effects{kind=\"valuations\"} 2",
            "florin_journal_records_total 1",
            "florin_valuations_replayed_total 1",
            "florin_transcripts_refused_total 0",
            "florin_bucket_requests_total{request=\"get\",outcome=\"digest_mismatch\"} 1",
            "florin_tasks{phase=\"enrolling\"} 2",
            "florin_paid_florins{pool=\"data\"} 1.5",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    /// The names of all series, as Prometheus stores them.
    fn names() -> BTreeSet<String> {
        let text = everything();
        let series = text.lines().filter(|line| !line.starts_with('#'));
        series.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect()
    }

    fn document(path: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn named_in(text: &str) -> BTreeSet<String> {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = text.split(|c: char| !word(c)).filter(|word| word.starts_with("florin_"));
        words.map(str::to_owned).collect()
    }

    #[test]
    fn dashboard_and_alerts_use_only_metrics_that_exist() {
        let known = names();
        let dashboard = document("grafana/florin.json");
        serde_json::from_str::<serde_json::Value>(&dashboard).unwrap();
        for text in [dashboard, document("grafana/alerts.yml")] {
            let used = named_in(&text);
            assert!(used.len() >= 8, "{used:?}");
            let unknown: Vec<_> = used.difference(&known).collect();
            assert!(unknown.is_empty(), "{unknown:?} are not in {known:?}");
        }
    }

    #[test]
    fn operations_md_lists_every_metric_and_no_other() {
        let text = document("operations.md");
        let (_, table) = text.split_once("<!-- metrics -->").unwrap();
        let (table, _) = table.split_once("<!-- /metrics -->").unwrap();
        let family = |name: &String| {
            let name =
                name.strip_suffix("_bucket").or_else(|| name.strip_suffix("_sum")).unwrap_or(name);
            name.strip_suffix("_count").unwrap_or(name).to_owned()
        };
        let known: BTreeSet<String> = names().iter().map(family).collect();
        assert_eq!(named_in(table), known);
    }

    #[test]
    fn every_alert_has_its_section_in_operations_md() {
        let (alerts, text) = (document("grafana/alerts.yml"), document("operations.md"));
        let names = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
        let names: Vec<&str> = names.collect();
        assert!(names.len() >= 8, "{names:?}");
        for name in names {
            assert!(text.contains(&format!("**{name}**")), "{name} is not explained");
        }
    }
}
