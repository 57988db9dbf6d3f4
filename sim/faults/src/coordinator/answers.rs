//! The work of the coordinator's server: maps requests to events, and the outcomes of events to
//! responses.

use florin_coordinator::host::{EffectJob, EngineRequest, LedgerJob};
use florin_engine::{Engine, Event, EventStatus, Visibility};
use florin_ledger::{Ledger, LedgerError, Settlement, Terms};
use florin_protocol::{
    Address, Amount, Canonical, EnrolRequest, ErrorCode, NodeKey, Offer, Registration, Rejection,
    Report, Role, RoundNumber, TaskView, Timestamp, UpdateHeader, WalletSignature, WorkRecord,
    blob_digest, claim_tree,
};
use florin_store::is_full;
use florin_work::CommittedHoldout;

use super::past;
use super::{Coordinator, ME, Plan, Running, Waiting};
use crate::bugs::Bug;
use crate::disk::Machine;
use crate::message::{Ask, Reply, UNSIGNED, unsigned};
use crate::network::Node;
use crate::task::{PROVIDER, account_of};
use crate::world::World;

/// Validity of a registration, in milliseconds.
const YEAR_MS: u64 = 365 * 24 * 3_600 * 1_000;
/// Validity of an enrolment message, in milliseconds.
const EXPIRY_MS: u64 = 600_000;
/// Base units per millionth of a florin.
const MICRO_UNITS: u128 = 1_000_000_000_000;

/// The preparation that a request needs before its response.
enum Needs {
    /// None.
    Nothing,
    /// The engine must apply this event.
    Event(Box<Event>),
}

type Prepared = Result<Needs, Rejection>;

fn told(event: Event) -> Prepared {
    Ok(Needs::Event(Box::new(event)))
}

fn reject<T>(code: ErrorCode, message: impl Into<String>) -> Result<T, Rejection> {
    Err(Rejection::new(code, message))
}

fn of_ledger(error: &LedgerError) -> Rejection {
    match error {
        LedgerError::Refused(refusal) => {
            Rejection::new(ErrorCode::LedgerRejected, refusal.to_string())
        }
        other => Rejection::new(ErrorCode::Internal, other.to_string()),
    }
}

fn of_disk(error: &std::io::Error) -> Rejection {
    let code = if is_full(error) { ErrorCode::StorageFull } else { ErrorCode::Internal };
    Rejection::new(code, error.to_string())
}

impl Coordinator {
    /// Prepares a batch: queries the ledger, and checks and stores uploaded bytes.
    pub(super) fn prepare(
        &self,
        world: &mut World,
        running: &Running,
        waiting: Vec<Waiting>,
    ) -> (Vec<EngineRequest>, Vec<Plan>) {
        let (mut asked, mut plans) = (Vec::new(), Vec::new());
        for waiting in waiting {
            let at = asked.len();
            match waiting {
                Waiting::Told { slot, asked: said } => {
                    asked.push(said.clone());
                    plans.push(Plan::Told { slot, asked: said, at });
                }
                Waiting::Ask { from, id, ask } => {
                    match self.prepare_one(world, running.core.engine(), from, &ask) {
                        Ok(Needs::Nothing) => plans.push(Plan::Read { from, id, ask }),
                        Ok(Needs::Event(event)) => {
                            asked.push(EngineRequest::Write(event));
                            plans.push(Plan::Write { from, id, ask, at });
                        }
                        Err(rejection) => plans.push(Plan::Refuse { from, id, rejection }),
                    }
                }
            }
        }
        (asked, plans)
    }

    fn prepare_one(&self, world: &mut World, engine: &Engine, from: Node, ask: &Ask) -> Prepared {
        let task = world.cast.spec.id();
        match ask {
            Ask::Look | Ask::Report(_) | Ask::Proof(_) | Ask::Blob(_) => Ok(Needs::Nothing),
            Ask::Publish => publish(world),
            Ask::Model => {
                let digest = self.machine.put(&world.cast.base);
                let digest = digest.map_err(|error| of_disk(&error))?;
                told(Event::BlobArrived { task, digest })
            }
            Ask::Holdout => {
                CommittedHoldout::decode(&world.cast.spec, &world.cast.holdout)?;
                let digest = self.machine.put(&world.cast.holdout);
                let digest = digest.map_err(|error| of_disk(&error))?;
                told(Event::HoldoutArrived { task, digest })
            }
            Ask::Register(role) => told(Event::Registered(registration(world, from, *role))),
            Ask::Enrol => {
                let (market, sender) = (world.cast.spec.market, account_of(from));
                let bond = bond(world, sender)?;
                let expires = world.clock(ME).saturating_add_ms(EXPIRY_MS);
                let enrol = unsigned(EnrolRequest { market, task, sender, expires });
                told(Event::Enrolled { enrol, bond })
            }
            Ask::Commit(commit) => {
                let bond = bond(world, commit.sender)?;
                told(Event::Committed { commit: unsigned(commit.clone()), bond })
            }
            Ask::Upload(header, bytes) => self.upload(world, engine, header, bytes),
            Ask::Work => {
                check_pledge(world, PROVIDER)?;
                told(Event::ProviderReady { task, provider: PROVIDER })
            }
            Ask::Record(record) => self.record(world, engine, record),
        }
    }

    /// Checks and stores the bytes before the engine applies the event.
    fn upload(
        &self,
        world: &mut World,
        engine: &Engine,
        header: &UpdateHeader,
        bytes: &[u8],
    ) -> Prepared {
        let now = world.clock(ME);
        world.auditor.upload_arrived(header, now.max(engine.state().now));
        let event = Event::Revealed(unsigned(header.clone()));
        // Planted bug: the coordinator does not check the deadline by its own clock.
        let late = world.bug == Some(Bug::LateUpdateAccepted);
        let checked = if late { Ok(EventStatus::New) } else { engine.check(&event, now) };
        if checked? == EventStatus::Duplicate {
            return Ok(Needs::Nothing);
        }
        if blob_digest(bytes) != header.update {
            return reject(ErrorCode::CommitMismatch, "the bytes do not match the commit");
        }
        florin_work::inspect_update(&world.cast.spec, bytes)?;
        self.machine.put(bytes).map_err(|error| of_disk(&error))?;
        told(event)
    }

    fn record(&self, world: &mut World, engine: &Engine, record: &WorkRecord) -> Prepared {
        if engine.find_order(record.order).is_none() {
            return reject(ErrorCode::WorkOrderClosed, "unknown work order");
        }
        check_pledge(world, record.provider)?;
        told(Event::WorkRecordReceived { record: unsigned(record.clone()), agrees: None })
    }

    /// The response to a request, from durable state.
    pub(super) fn answer(&self, world: &mut World, from: Node, ask: &Ask, now: Timestamp) -> Reply {
        let answered = match self.core() {
            Some(core) => self.answer_by(world, core.engine(), from, ask, now),
            None => reject(ErrorCode::Internal, "the coordinator is stopping"),
        };
        answered.unwrap_or_else(Reply::Refused)
    }

    fn answer_by(
        &self,
        world: &World,
        engine: &Engine,
        from: Node,
        ask: &Ask,
        now: Timestamp,
    ) -> Result<Reply, Rejection> {
        let task = world.cast.spec.id();
        match ask {
            Ask::Publish
            | Ask::Model
            | Ask::Holdout
            | Ask::Register(_)
            | Ask::Enrol
            | Ask::Commit(_) => Ok(Reply::Done),
            Ask::Look => {
                let (view, offer) = engine.view(task, now)?;
                let view = TaskView { offer: offer.map(unsigned), ..view };
                Ok(Reply::View(Box::new(view)))
            }
            Ask::Upload(header, _) => {
                let (scope, sender) = (header.scope, header.sender);
                let receipt =
                    past::receipt((engine, &self.machine), scope, sender, header.digest());
                let missing =
                    || Rejection::new(ErrorCode::Internal, "the accepted update has no receipt");
                receipt?.map(Reply::Receipt).ok_or_else(missing)
            }
            Ask::Report(round) => {
                let past = past::past((engine, &self.machine), task, *round)?;
                let report = shown(engine, &past.report, world.bug);
                Ok(Reply::Report(Box::new(report), Box::new(past.offer)))
            }
            Ask::Proof(account) => past::proof(engine, task, *account, world.bug).map(Reply::Proof),
            Ask::Blob(digest) => {
                if engine.visibility(*digest) != Visibility::Public {
                    // The provider of an order may read the blobs of the order.
                    engine.check_order_names(task, *digest)?;
                    if !(from == Node::Provider && engine.has_order(task, PROVIDER)) {
                        return reject(ErrorCode::NotYetPublic, "not yet");
                    }
                }
                let bytes = self.machine.get(*digest);
                bytes.map(Reply::Bytes).map_err(|error| {
                    Rejection::new(ErrorCode::NotFound, format!("blob {digest}: {error}"))
                })
            }
            Ask::Work => {
                let order = engine.open_order(task, PROVIDER, now);
                Ok(Reply::Order(order.cloned().map(Box::new)))
            }
            Ask::Record(record) => {
                let asked = (engine, &self.machine);
                match past::verdict(asked, record.order, record.digest())? {
                    Some(verdict) => verdict.map(Reply::Verdict),
                    None => {
                        reject(ErrorCode::TooEarly, "accepted but not verified yet: send it again")
                    }
                }
            }
        }
    }

    /// Planted bug: a receipt although the journal refused the update.
    pub(super) fn planted_receipt(
        &self,
        world: &World,
        ask: &Ask,
        rejection: &Rejection,
        now: Timestamp,
    ) -> Option<Reply> {
        let Ask::Upload(header, _) = ask else { return None };
        let planted = world.bug == Some(Bug::ReceiptWithoutRecord)
            && matches!(rejection.code, ErrorCode::StorageFull | ErrorCode::Internal);
        let task = self.core()?.engine().state().tasks.get(&header.scope.task)?;
        let order = task.running()?.commits.get(&header.sender)?.order;
        let (scope, sender, update) = (header.scope, header.sender, header.digest());
        let receipt = florin_protocol::UpdateReceipt {
            scope,
            sender,
            update,
            at: now,
            commit_position: order,
        };
        planted.then_some(Reply::Receipt(receipt))
    }
}

fn publish(world: &World) -> Prepared {
    let spec = world.cast.spec.clone();
    let open = world.way(ME).task(spec.id()).map_err(|error| of_ledger(&error))?;
    let Some(open) = open else {
        return reject(ErrorCode::NotFunded, "no escrow is open for this task");
    };
    if open.closed || open.terms != Terms::from_spec(&spec) {
        return reject(
            ErrorCode::NotFunded,
            "the task is closed on the ledger, or has other terms there",
        );
    }
    let model_bytes = florin_work::model_bytes(&spec);
    let update_bytes = florin_work::update_bytes(&spec);
    told(Event::TaskPublished { spec: Box::new(spec), model_bytes, update_bytes })
}

fn registration(world: &World, from: Node, role: Role) -> Registration {
    let wallet = account_of(from);
    Registration {
        market: world.cast.spec.market,
        wallet,
        node_key: NodeKey(blob_digest(&wallet.0).0),
        role,
        expires: world.clock(ME).saturating_add_ms(YEAR_MS),
        wallet_signature: WalletSignature([0; 65]),
        node_signature: UNSIGNED,
    }
}

/// The bond of a participant; zero after an unbond request.
fn bond(world: &World, account: Address) -> Result<Amount, Rejection> {
    let bond = world.way(ME).bond_of(world.cast.spec.id(), account);
    let bond = bond.map_err(|error| of_ledger(&error))?;
    Ok(if bond.release.is_some() { Amount::ZERO } else { bond.amount })
}

fn check_pledge(world: &World, provider: Address) -> Result<(), Rejection> {
    let (way, spec) = (world.way(ME), &world.cast.spec);
    let pledged = way.is_pledged(spec.id(), provider).map_err(|error| of_ledger(&error))?;
    let stake = way.stake_of(provider).map_err(|error| of_ledger(&error))?;
    if pledged && stake.release.is_none() && stake.amount >= spec.budget.stake_min {
        return Ok(());
    }
    reject(ErrorCode::StakeTooSmall, "the stake pledged to the task is too small")
}

/// The disclosed report and offer of every round, and the errors of unreadable rounds.
pub(super) fn all_rounds(
    engine: &Engine,
    machine: &Machine,
    world: &World,
) -> (Vec<(Report, Offer)>, Vec<String>) {
    let id = world.cast.spec.id();
    let rounds = engine.state().tasks.get(&id).map_or(0, |task| task.rounds.len());
    let (mut read, mut lost) = (Vec::new(), Vec::new());
    for round in 1..=rounds as u32 {
        match past::past((engine, machine), id, RoundNumber(round)) {
            Ok(past) => read.push((shown(engine, &past.report, world.bug), past.offer)),
            Err(why) => lost.push(format!("round {round}: {why}")),
        }
    }
    (read, lost)
}

/// The disclosed report. Planted bug: every payout is rounded up.
fn shown(engine: &Engine, report: &Report, bug: Option<Bug>) -> Report {
    if bug != Some(Bug::PayoutRounding) {
        return report.clone();
    }
    let before = florin_protocol::RoundNumber(report.scope.round.0.saturating_sub(1));
    let before = engine.report(report.scope.task, before).ok();
    rounded_up(report, before)
}

/// Planted bug: the settlement of the rounded report.
pub(super) fn round_settlement_up(engine: &Engine, job: &mut EffectJob) {
    let EffectJob::Ledger(job) = job else { return };
    if let LedgerJob::Post { settlement: posted, .. } = job.as_mut()
        && let Ok(report) = engine.report(posted.task, posted.round)
    {
        let report = shown(engine, report, Some(Bug::PayoutRounding));
        *posted = Settlement::from_report(&report, report.digest());
    }
}

/// Planted bug: rounds an amount up to a millionth.
pub(super) fn up(amount: Amount) -> Amount {
    Amount::from_units(amount.units().next_multiple_of(MICRO_UNITS))
}

/// The report with cumulative totals rounded up to millionths, and a root and a total that match
/// them.
fn rounded_up(report: &Report, before: Option<&Report>) -> Report {
    let mut report = report.clone();
    let mut total = Amount::ZERO;
    for standing in report.account_totals.values_mut() {
        standing.data = up(standing.data);
        total = total.plus(standing.data).unwrap_or_default();
    }
    report.data_total = total;
    let old = before.map(|before| rounded_up(before, None));
    let standings = &report.account_totals;
    for line in &mut report.lines {
        let now = standings.get(&line.account).map(|standing| standing.data);
        let was = old.as_ref().and_then(|old| old.account_totals.get(&line.account));
        let was = was.map(|standing| standing.data).unwrap_or_default();
        line.payout = now.unwrap_or_default().minus(was).unwrap_or_default();
    }
    report.previous_root = old.map(|old| old.root).unwrap_or_default();
    report.root = claim_tree(&report.account_totals).map(|tree| tree.root()).unwrap_or_default();
    report
}
