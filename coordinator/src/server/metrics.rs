//! What server and market look like from outside: counters and timings in the OpenMetrics text format.
//!
//! `docs/operations.md` says what each is for. Nothing that a peer can choose becomes a label, so that there are never
//! more series than routes times answers.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use florin_protocol::{Amount, Code, Phase};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::engine::Engine;

/// Bounds of the latency histograms, in seconds.
const LATENCIES: [f64; 12] =
    [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// Every phase, by the name that the interface uses.
const PHASES: [(Phase, &str); 8] = [
    (Phase::AwaitingBlobs, "awaiting_blobs"),
    (Phase::Enrolling, "enrolling"),
    (Phase::Committing, "committing"),
    (Phase::Revealing, "revealing"),
    (Phase::Valuing, "valuing"),
    (Phase::Settling, "settling"),
    (Phase::Closing, "closing"),
    (Phase::Done, "done"),
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRoute {
    route: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCode {
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPhase {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPool {
    pool: &'static str,
}

type Number = Gauge<f64, AtomicU64>;

/// The market in numbers, as the engine has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Picture {
    tasks: Vec<(&'static str, i64)>,
    enrolled: i64,
    rounds: u64,
    unsettled: i64,
    deposited: Vec<Amount>,
    paid: Vec<Amount>,
}

impl Picture {
    /// Looks at every task.
    pub(super) fn of(engine: &Engine) -> Self {
        let tasks = || engine.state().tasks.values();
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let last = |task: &crate::engine::state::TaskState| {
            task.past.last().map(|past| [past.report.data_total, past.report.infrastructure_total])
        };
        Self {
            tasks: PHASES
                .iter()
                .map(|(phase, name)| {
                    (*name, count(tasks().filter(|t| t.phase() == *phase).count()))
                })
                .collect(),
            enrolled: count(tasks().map(|task| task.enrolled.len()).fold(0, usize::saturating_add)),
            rounds: tasks().fold(0, |all, task| all.saturating_add(task.past.len() as u64)),
            unsettled: count(tasks().map(|t| t.unsettled.len()).fold(0, usize::saturating_add)),
            deposited: pools(tasks().map(|t| [t.spec.budget.data, t.spec.budget.infrastructure])),
            paid: pools(tasks().filter_map(last)),
        }
    }
}

/// Sums of data and infrastructure. More than any supply shows as the most that an amount can say.
fn pools(amounts: impl Iterator<Item = [Amount; 2]>) -> Vec<Amount> {
    let most = Amount::from_units(u128::MAX);
    amounts
        .fold([Amount::ZERO; 2], |[data, infrastructure], [d, i]| {
            [data.plus(d).unwrap_or(most), infrastructure.plus(i).unwrap_or(most)]
        })
        .to_vec()
}

/// All counters of one server.
pub(super) struct Metrics {
    registry: Mutex<Registry>,
    answers: Family<Answered, Counter>,
    seconds: Family<OfRoute, Histogram>,
    received: Counter,
    rejections: Family<OfCode, Counter>,
    queue: Gauge,
    tasks: Family<OfPhase, Gauge>,
    enrolled: Gauge,
    rounds: Gauge,
    unsettled: Gauge,
    deposited: Family<OfPool, Number>,
    paid: Family<OfPool, Number>,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Mutex::default(),
            answers: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(LATENCIES)),
            received: Counter::default(),
            rejections: Family::default(),
            queue: Gauge::default(),
            tasks: Family::default(),
            enrolled: Gauge::default(),
            rounds: Gauge::default(),
            unsettled: Gauge::default(),
            deposited: Family::default(),
            paid: Family::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&self) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let all = registry.sub_registry_with_prefix("florin");
        all.register("http_answers", "Requests answered", self.answers.clone());
        let what = "Time from a request's head to its answer's head";
        all.register_with_unit("http_duration", what, Unit::Seconds, self.seconds.clone());
        let what = "Bytes of the bodies that requests announced";
        all.register_with_unit("http_received", what, Unit::Bytes, self.received.clone());
        all.register("rejections", "Answers that were no, by their code", self.rejections.clone());
        all.register("engine_queue", "Commands that wait for the engine", self.queue.clone());
        all.register("tasks", "Tasks by phase", self.tasks.clone());
        let what = "Participants enrolled, counted once for each task";
        all.register("enrolled", what, self.enrolled.clone());
        all.register("rounds_reported", "Rounds that have a report", self.rounds.clone());
        let what = "Settlements that are not final yet";
        all.register("settlements_pending", what, self.unsettled.clone());
        let what =
            "Florins deposited for all tasks this coordinator has known, for people: rounded";
        all.register("deposited_florins", what, self.deposited.clone());
        let what = "Florins that reports have come to, for people: rounded";
        all.register("paid_florins", what, self.paid.clone());
    }

    /// Counts one answer. `route` is the pattern that matched, never what a peer wrote.
    pub(super) fn answered(&self, route: &str, status: u16, took: Duration, received: u64) {
        let route = route.to_owned();
        self.seconds.get_or_create(&OfRoute { route: route.clone() }).observe(took.as_secs_f64());
        self.answers.get_or_create(&Answered { route, status }).inc();
        self.received.inc_by(received);
    }

    pub(super) fn rejected(&self, code: Code) {
        self.rejections.get_or_create(&OfCode { code: code.as_str() }).inc();
    }

    /// Everything, with the market as it is now.
    pub(super) fn text(&self, picture: &Picture, queue: usize) -> Result<String, std::fmt::Error> {
        self.queue.set(i64::try_from(queue).unwrap_or(i64::MAX));
        for (phase, count) in &picture.tasks {
            self.tasks.get_or_create(&OfPhase { phase }).set(*count);
        }
        self.enrolled.set(picture.enrolled);
        self.rounds.set(i64::try_from(picture.rounds).unwrap_or(i64::MAX));
        self.unsettled.set(picture.unsettled);
        for (family, amounts) in
            [(&self.deposited, &picture.deposited), (&self.paid, &picture.paid)]
        {
            for (pool, amount) in ["data", "infrastructure"].into_iter().zip(amounts) {
                family.get_or_create(&OfPool { pool }).set(florins(*amount));
            }
        }
        let mut text = String::new();
        encode(&mut text, &self.registry.lock().unwrap_or_else(PoisonError::into_inner))?;
        Ok(text)
    }
}

/// For people and their graphs: rounded.
fn florins(amount: Amount) -> f64 {
    amount.to_string().parse().unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_counted_and_shown() {
        let metrics = Metrics::default();
        metrics.answered("/v1/tasks/{id}", 200, Duration::from_millis(3), 0);
        metrics.answered("/v1/tasks/{id}", 404, Duration::from_millis(3), 40);
        metrics.rejected(Code::UnknownTask);
        let picture = Picture {
            tasks: vec![("enrolling", 2)],
            paid: vec!["1.5".parse().unwrap(), Amount::ZERO],
            ..Picture::default()
        };
        let text = metrics.text(&picture, 7).unwrap();
        for line in [
            "florin_http_answers_total{route=\"/v1/tasks/{id}\",status=\"404\"} 1",
            "florin_http_duration_seconds_bucket{le=\"0.005\",route=\"/v1/tasks/{id}\"} 2",
            "florin_http_received_bytes_total 40",
            "florin_rejections_total{code=\"UNKNOWN_TASK\"} 1",
            "florin_engine_queue 7",
            "florin_tasks{phase=\"enrolling\"} 2",
            "florin_paid_florins{pool=\"data\"} 1.5",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
