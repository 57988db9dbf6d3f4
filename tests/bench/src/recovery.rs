//! `florin-bench recovery`: how long a coordinator takes to recover from a journal of a million
//! events, with and without snapshots.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, anyhow, ensure};
use florin_coordinator::host::snapshotter::{to_bytes, with_replay_target};
use florin_engine::state::TaskStage;
use florin_engine::{Effect, Engine, Event};
use florin_ledger::conformance::TestSigner;
use florin_protocol::{
    Address, Aggregation, Amount, Budget, ChainId, Commit, DataSchema, Digest, EnrolRequest,
    Estimator, Holdout, MarketId, Micro, ModelArchitecture, ModelMetrics, NodeSignature,
    NodeSigner, Offer, Preprocessing, PreprocessingRules, Registration, Role, RoundRules, Signed,
    TaskId, TaskSpec, Timestamp, Training, UpdateHeader, UpdateScore, Valuation, ValuationEvidence,
    WorkResult, blob_digest,
};
use florin_store::recovery::OldSegments;
use florin_store::{
    Journal, JournalEntry, LocalVolume, Snapshot, Volume, journal, recovery, snapshot,
};

use super::Measurement;

/// Events in the journal.
const EVENTS: u64 = 1_000_000;
/// Events after the newest snapshot: the maximum, just before the next snapshot is due.
const TAIL: u64 = 100_000;
/// Events per group commit (one fsync).
const BATCH: usize = 256;
/// Number of concurrent tasks.
const TASKS: u64 = 50;
/// Participants per round.
const PEOPLE: u64 = 100;
/// Rounds of a task.
const ROUNDS: u32 = 100;
/// Maximum duration of the recovery, in seconds.
const SECONDS_MAX: f64 = 5.0;

const MARKET: MarketId = MarketId { chain: ChainId(1), genesis: Digest([1; 32]) };
const COORDINATOR: Address = Address([2; 20]);
const OWNER: Digest = Digest([5; 32]);

pub(super) fn run() -> anyhow::Result<Vec<Measurement>> {
    // Use the working folder: a temporary folder may be in memory.
    let folder = tempfile::Builder::new().prefix("florin-bench-").tempdir_in(".").context(
        "the working folder must be writable, because the journal is measured on its disk",
    )?;
    let volume: Arc<dyn Volume> = Arc::new(LocalVolume(folder.path().to_owned()));
    let live = SyntheticMarket::new(&volume)?.run_to_end()?;
    let (with, read) = timed(&volume, &live)?;
    ensure!(read.events < EVENTS, "the snapshot was not used");
    let snapshot = folder.path().join(snapshot::name(newest(folder.path())?));
    let bytes = std::fs::metadata(&snapshot)?.len();
    std::fs::remove_file(&snapshot)?;
    let (without, read) = timed(&volume, &live)?;
    ensure!(read.events == EVENTS, "{} events were read, not {EVENTS}", read.events);
    Ok(vec![
        Measurement::plain("events in the journal", wide(EVENTS), ""),
        Measurement::plain("  its size", wide(read.bytes) / 1e6, "MB"),
        Measurement::plain("  its newest snapshot", wide(bytes) / 1e6, "MB"),
        Measurement::plain("  events after it", wide(TAIL), ""),
        Measurement::below(
            "recovery from the snapshot and the events after it",
            with,
            "s",
            SECONDS_MAX,
        ),
        Measurement::plain("recovery from the first event", without, "s"),
    ])
}

fn timed(
    volume: &Arc<dyn Volume>,
    live: &Engine,
) -> anyhow::Result<(f64, florin_store::JournalGrowth)> {
    let begun = Instant::now();
    let (engine, journal) = opened(volume)?;
    let took = begun.elapsed().as_secs_f64();
    ensure!(engine.state() == live.state(), "the recovered state differs from the original state");
    Ok((took, journal.growth()))
}

fn opened(volume: &Arc<dyn Volume>) -> anyhow::Result<(Engine, Journal)> {
    Ok(with_replay_target(MARKET, COORDINATOR, |fold| journal::open(volume, OWNER, fold))?)
}

fn newest(folder: &Path) -> anyhow::Result<u64> {
    let names = LocalVolume(folder.to_owned()).names()?;
    let numbers = names.iter().filter_map(|name| name.strip_prefix("snapshot-")?.parse().ok());
    numbers.max().context("no snapshot was written")
}

/// A synthetic market: engine and journal only, without training and with fake signatures.
struct SyntheticMarket {
    volume: Arc<dyn Volume>,
    engine: Engine,
    journal: Journal,
    batch: Vec<JournalEntry>,
    people: Vec<Address>,
    tasks: Vec<TaskId>,
    now: Timestamp,
    events: u64,
    archive_events: Vec<Event>,
}

impl SyntheticMarket {
    fn new(volume: &Arc<dyn Volume>) -> anyhow::Result<Self> {
        let (engine, journal) = opened(volume)?;
        let mut story = Self {
            volume: Arc::clone(volume),
            engine,
            journal,
            batch: Vec::new(),
            people: Vec::new(),
            tasks: Vec::new(),
            now: Timestamp(1_000),
            events: 0,
            archive_events: Vec::new(),
        };
        for number in 0..PEOPLE {
            let wallet = TestSigner::new(number)?;
            let node = NodeSigner::from_seed(&blob_digest(&number.to_le_bytes()).0);
            let expires = Timestamp(600_000_000);
            let role = Role::Participant;
            let registration = Registration::sign(MARKET, &wallet, &node, role, expires)
                .map_err(|error| anyhow!("{error}"))?;
            story.people.push(registration.wallet);
            story.apply(Event::Registered(registration))?;
        }
        story.people.sort_unstable();
        for number in 0..TASKS {
            story.publish(&spec(number))?;
        }
        Ok(story)
    }

    fn publish(&mut self, spec: &TaskSpec) -> anyhow::Result<()> {
        let task = spec.id();
        self.apply(Event::TaskPublished {
            spec: spec.clone().into(),
            model_bytes: 40_000,
            update_bytes: 40_000,
        })?;
        self.apply(Event::BlobArrived { task, digest: spec.base_model })?;
        self.apply(Event::HoldoutArrived { task, digest: Digest([8; 32]) })?;
        for sender in self.people.clone() {
            let enrol =
                EnrolRequest::without_invitation(MARKET, task, sender, Timestamp(1_000_000_000));
            self.apply(Event::Enrolled { enrol: signed(enrol), bond: fln(5) })?;
        }
        self.tasks.push(task);
        Ok(())
    }

    /// Runs rounds until the journal has [`EVENTS`] events.
    fn run_to_end(mut self) -> anyhow::Result<Engine> {
        while self.events < EVENTS {
            for task in self.tasks.clone() {
                self.round(task)?;
            }
        }
        Ok(self.engine)
    }

    fn round(&mut self, task: TaskId) -> anyhow::Result<()> {
        let state = self.engine.state().tasks.get(&task).context("the task exists")?;
        let offer = state.running().context("a round is running")?.offer.clone();
        let round = offer.scope.round;
        for sender in self.people.clone() {
            let header = header(&offer, sender);
            let (scope, commitment) = (header.scope, header.commitment());
            let commit = Commit { scope, sender, offer: header.offer, commitment };
            self.apply(Event::Committed { commit: signed(commit), bond: fln(5) })?;
        }
        for sender in self.people.clone() {
            self.apply(Event::Revealed(signed(header(&offer, sender))))?;
        }
        self.apply(Event::RowsDisclosed { task, round, rows: Digest([9; 32]) })?;
        let result = Box::new(self.result());
        self.apply(Event::RoundValued {
            task,
            round,
            result,
            paid: None,
            wrong_records: Vec::new(),
        })?;
        self.apply(Event::SettlementPosted { task, round })?;
        self.apply(Event::SettlementFinal { task, round })?;
        let state = self.engine.state().tasks.get(&task).context("the task exists")?;
        ensure!(
            self.events >= EVENTS || matches!(state.stage, TaskStage::Committing(_)),
            "no round is running"
        );
        Ok(())
    }

    fn result(&self) -> WorkResult {
        let score = |account: &Address| UpdateScore {
            account: *account,
            score_nano: 10_000,
            error_nano: 1_000,
            excluded: false,
            preprocessing: Preprocessing::default(),
        };
        let total_nano = i64::try_from(PEOPLE).unwrap_or_default() * 10_000;
        let valuation = Valuation {
            loss_before_nano: 2_000_000_000,
            loss_after_nano: 2_000_000_000 - total_nano,
            total_nano,
            gap_nano: 0,
            model_loss_nano: 0,
            stages: Vec::new(),
            scores: self.people.iter().map(score).collect(),
            units: 5,
            evidence: ValuationEvidence::default(),
        };
        WorkResult {
            valuation,
            baseline: None,
            metrics: ModelMetrics::default(),
            model: Digest([7; 32]),
        }
    }

    /// Applies an event and the resulting archive events, unless the journal is long enough.
    fn apply(&mut self, event: Event) -> anyhow::Result<()> {
        self.apply_one(event)?;
        while let Some(archived) = self.archive_events.pop() {
            self.apply_one(archived)?;
        }
        Ok(())
    }

    fn apply_one(&mut self, event: Event) -> anyhow::Result<()> {
        if self.events >= EVENTS {
            return Ok(());
        }
        self.now = Timestamp(self.now.0 + 1);
        let applied = self.engine.apply(&event, self.now);
        let applied = applied.map_err(|rejection| anyhow!("{rejection}"))?;
        // Completed rounds are archived and leave the memory, as in a coordinator.
        let keeps = applied.effects.into_iter().filter_map(|effect| match effect {
            Effect::ArchiveRound { task, round } => {
                Some(Event::RoundArchived { task, round, digest: Digest([5; 32]) })
            }
            _ => None,
        });
        self.archive_events.extend(keeps);
        self.batch.push(JournalEntry { now: self.now, event });
        self.events += 1;
        let cut = self.events == EVENTS - TAIL;
        if self.batch.len() == BATCH || cut || self.events == EVENTS {
            self.journal.append(&std::mem::take(&mut self.batch))?;
        }
        if cut {
            let at = self.journal.rotate_segment()?;
            let state = to_bytes(self.engine.state()).context("a state can be encoded")?;
            recovery::store_snapshot(
                self.volume.as_ref(),
                OWNER,
                &Snapshot { at, state },
                OldSegments::Retain,
            )?;
        }
        Ok(())
    }
}

fn fln(whole: u64) -> Amount {
    Amount::from_units(u128::from(whole) * 1_000_000_000_000_000_000)
}

/// A fake signature: recovery does not verify signatures, because each event was verified before it
/// was written.
fn signed<T>(body: T) -> Signed<T> {
    Signed { body, signature: NodeSignature([3; 64]) }
}

fn header(offer: &Offer, sender: Address) -> UpdateHeader {
    use florin_protocol::Canonical;
    let seed = [sender.0.as_slice(), &offer.scope.round.0.to_le_bytes()].concat();
    UpdateHeader {
        scope: offer.scope,
        sender,
        offer: offer.digest(),
        base_model: offer.base_model,
        rows: 100,
        update: blob_digest(&seed),
        bytes: 40_000,
        salt: Digest([4; 32]),
        expires: Timestamp(1_000_000_000),
    }
}

fn spec(salt: u64) -> TaskSpec {
    let people = u32::try_from(PEOPLE).unwrap_or(u32::MAX);
    let example = TaskSpec::example();
    TaskSpec {
        market: MARKET,
        buyer: Address([1; 20]),
        coordinator: COORDINATOR,
        arbiter: Address([3; 20]),
        name: "recovery".to_owned(),
        salt,
        model: ModelArchitecture::Mlp { inputs: 64, hidden: vec![128], classes: 10 },
        base_model: Digest([6; 32]),
        data: DataSchema { width: 64, classes: 10, encoding: None },
        holdout: Holdout { root: Digest([8; 32]), rows: 1_000, rows_per_round: 10 },
        training: Training {
            epochs: 1,
            batch: 16,
            learning_rate: Micro(100_000),
            ..example.training
        },
        rounds: RoundRules {
            count: ROUNDS,
            cohort_min: 2,
            cohort_target: people,
            enrol_ms: 600_000,
            train_ms: 600_000,
            reveal_ms: 600_000,
            value_ms: 600_000,
            delta_norm_max: Micro(20_000_000),
            aggregation: Aggregation::Mean,
            preprocessing: PreprocessingRules::default(),
            baseline_epochs: 0,
            ..example.rounds
        },
        estimator: Estimator::Path { nodes: 3, cross_check_pairs: 0 },
        budget: Budget {
            data: fln(1_000),
            infrastructure: fln(10),
            per_nat_max: fln(500),
            confidence_z: Micro(2_000_000),
            bond_min: fln(1),
            bond_per_row: Amount::from_units(1),
            debit_max: fln(1),
            per_unit: Amount::ZERO,
            challenge_ms: 1,
            unbond_ms: 100_000_000,
            ..example.budget
        },
        expires: Timestamp::MAX,
        ..example
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts, for output")]
fn wide(n: u64) -> f64 {
    n as f64
}
