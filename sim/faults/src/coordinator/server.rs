//! The work of the coordinator's server: maps requests to events, and the outcomes of events to
//! responses.

use florin_coordinator::host::{EffectJob, EngineRequest, LedgerJob};
use florin_engine::{Engine, Event, EventStatus, UnsignedTaskView, Visibility};
use florin_ledger::{Ledger, LedgerError, Settlement, Terms};
use florin_protocol::{
    Address, Amount, Canonical, EnrolRequest, ErrorCode, NodeKey, Offer, Registration, Rejection,
    Report, Role, RoundNumber, TaskView, Timestamp, UpdateHeader, WalletSignature, WorkRecord,
    blob_digest, claim_tree,
};
use florin_store::is_full;
use florin_work::CommittedHoldout;

use super::past_rounds::{self, round_up};
use super::{BatchInput, ME, PendingReply, RunningProcess, SimCoordinator};
use crate::bugs::Bug;
use crate::context::SimContext;
use crate::disk::SimDisk;
use crate::message::{CoordinatorReply, CoordinatorRequest, DUMMY_SIGNATURE, unsigned};
use crate::network::ProcessId;
use crate::setup::{PROVIDER, account_of};

/// Validity of a registration and of an enrolment message, in milliseconds.
const EXPIRY_MS: u64 = 600_000;
/// The preparation that a request needs before its response.
enum Preparation {
    /// None.
    Nothing,
    /// The engine must apply this event.
    Event(Box<Event>),
}

type Prepared = Result<Preparation, Rejection>;

fn needs_event(event: Event) -> Prepared {
    Ok(Preparation::Event(Box::new(event)))
}

fn reject<T>(code: ErrorCode, message: impl Into<String>) -> Result<T, Rejection> {
    Err(Rejection::new(code, message))
}

fn from_ledger(error: &LedgerError) -> Rejection {
    match error {
        LedgerError::Refused(refusal) => {
            Rejection::new(ErrorCode::LedgerRejected, refusal.to_string())
        }
        other => Rejection::new(ErrorCode::Internal, other.to_string()),
    }
}

fn from_disk(error: &std::io::Error) -> Rejection {
    let code = if is_full(error) { ErrorCode::StorageFull } else { ErrorCode::Internal };
    Rejection::new(code, error.to_string())
}

impl SimCoordinator {
    /// Prepares a batch: queries the ledger, and checks and stores uploaded bytes.
    pub(super) fn prepare(
        &self,
        world: &mut SimContext,
        running: &RunningProcess,
        waiting: Vec<BatchInput>,
    ) -> (Vec<EngineRequest>, Vec<PendingReply>) {
        let (mut asked, mut plans) = (Vec::new(), Vec::new());
        for waiting in waiting {
            let at = asked.len();
            match waiting {
                BatchInput::JobResult { slot, asked: command } => {
                    asked.push(command.clone());
                    plans.push(PendingReply::JobOutcome { slot, asked: command, at });
                }
                BatchInput::Request { from, id, ask } => {
                    match self.prepare_one(world, running.core.engine(), from, &ask) {
                        Ok(Preparation::Nothing) => {
                            plans.push(PendingReply::Read { from, id, ask })
                        }
                        Ok(Preparation::Event(event)) => {
                            asked.push(EngineRequest::Write(event));
                            plans.push(PendingReply::Write { from, id, ask, at });
                        }
                        Err(rejection) => plans.push(PendingReply::Refuse { from, id, rejection }),
                    }
                }
            }
        }
        (asked, plans)
    }

    fn prepare_one(
        &self,
        world: &mut SimContext,
        engine: &Engine,
        from: ProcessId,
        ask: &CoordinatorRequest,
    ) -> Prepared {
        let task = world.setup.spec.id();
        match ask {
            CoordinatorRequest::View
            | CoordinatorRequest::Report(_)
            | CoordinatorRequest::Proof(_)
            | CoordinatorRequest::Blob(_) => Ok(Preparation::Nothing),
            CoordinatorRequest::Publish => publish(world),
            CoordinatorRequest::Model => {
                let digest = self.disk.put_blob(&world.setup.base);
                let digest = digest.map_err(|error| from_disk(&error))?;
                needs_event(Event::BlobArrived { task, digest })
            }
            CoordinatorRequest::Holdout => {
                CommittedHoldout::decode(&world.setup.spec, &world.setup.holdout)?;
                let digest = self.disk.put_blob(&world.setup.holdout);
                let digest = digest.map_err(|error| from_disk(&error))?;
                needs_event(Event::HoldoutArrived { task, digest })
            }
            CoordinatorRequest::Register(role) => {
                needs_event(Event::Registered(registration(world, from, *role)))
            }
            CoordinatorRequest::Enrol => {
                let (market, sender) = (world.setup.spec.market, account_of(from));
                let bond = bond(world, sender)?;
                let expires = world.clock(ME).saturating_add_ms(EXPIRY_MS);
                let enrol =
                    unsigned(EnrolRequest::without_invitation(market, task, sender, expires));
                needs_event(Event::Enrolled { enrol, bond })
            }
            CoordinatorRequest::Commit(commit) => {
                let bond = bond(world, commit.sender)?;
                needs_event(Event::Committed { commit: unsigned(commit.clone()), bond })
            }
            CoordinatorRequest::Upload(header, bytes) => self.upload(world, engine, header, bytes),
            CoordinatorRequest::OpenOrder => {
                check_pledge(world, PROVIDER)?;
                needs_event(Event::ProviderReady { task, provider: PROVIDER })
            }
            CoordinatorRequest::Record(record) => self.record(world, engine, record),
        }
    }

    /// Checks and stores the bytes before the engine applies the event.
    fn upload(
        &self,
        world: &mut SimContext,
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
            return Ok(Preparation::Nothing);
        }
        if blob_digest(bytes) != header.update {
            return reject(ErrorCode::CommitMismatch, "the bytes do not match the commit");
        }
        florin_work::inspect_update(&world.setup.spec, bytes)?;
        self.disk.put_blob(bytes).map_err(|error| from_disk(&error))?;
        needs_event(event)
    }

    fn record(&self, world: &mut SimContext, engine: &Engine, record: &WorkRecord) -> Prepared {
        if engine.find_order(record.order).is_none() {
            return reject(ErrorCode::WorkOrderClosed, "unknown work order");
        }
        check_pledge(world, record.provider)?;
        needs_event(Event::WorkRecordReceived { record: unsigned(record.clone()), agrees: None })
    }

    /// The response to a request, from durable state.
    pub(super) fn answer(
        &self,
        world: &mut SimContext,
        from: ProcessId,
        ask: &CoordinatorRequest,
        now: Timestamp,
    ) -> CoordinatorReply {
        let answered = match self.core() {
            Some(core) => self.answer_by(world, core.engine(), from, ask, now),
            None => reject(ErrorCode::Internal, "the coordinator is stopping"),
        };
        answered.unwrap_or_else(CoordinatorReply::Refused)
    }

    fn answer_by(
        &self,
        world: &SimContext,
        engine: &Engine,
        from: ProcessId,
        ask: &CoordinatorRequest,
        now: Timestamp,
    ) -> Result<CoordinatorReply, Rejection> {
        let task = world.setup.spec.id();
        match ask {
            CoordinatorRequest::Publish
            | CoordinatorRequest::Model
            | CoordinatorRequest::Holdout
            | CoordinatorRequest::Register(_)
            | CoordinatorRequest::Enrol
            | CoordinatorRequest::Commit(_) => Ok(CoordinatorReply::Done),
            CoordinatorRequest::View => {
                let UnsignedTaskView { view, offer } = engine.view(task, now)?;
                let view = TaskView { offer: offer.map(unsigned), ..view };
                Ok(CoordinatorReply::View(Box::new(view)))
            }
            CoordinatorRequest::Upload(header, _) => {
                let (scope, sender) = (header.scope, header.sender);
                let receipt =
                    past_rounds::receipt((engine, &self.disk), scope, sender, header.digest());
                let missing =
                    || Rejection::new(ErrorCode::Internal, "the accepted update has no receipt");
                receipt?.map(CoordinatorReply::Receipt).ok_or_else(missing)
            }
            CoordinatorRequest::Report(round) => {
                let past = past_rounds::past_round((engine, &self.disk), task, *round)?;
                let report = disclosed_report(engine, &past.report, world.bug);
                Ok(CoordinatorReply::Report(Box::new(report), Box::new(past.offer)))
            }
            CoordinatorRequest::Proof(account) => {
                past_rounds::proof(engine, task, *account, world.bug).map(CoordinatorReply::Proof)
            }
            CoordinatorRequest::Blob(digest) => {
                if engine.visibility(*digest) != Visibility::Public {
                    // The provider of an order may read the blobs of the order.
                    engine.check_order_names(task, *digest)?;
                    if !(from == ProcessId::Provider && engine.has_order(task, PROVIDER)) {
                        return reject(ErrorCode::NotYetPublic, "not yet");
                    }
                }
                let bytes = self.disk.get_blob(*digest);
                bytes.map(CoordinatorReply::Bytes).map_err(|error| {
                    Rejection::new(ErrorCode::NotFound, format!("blob {digest}: {error}"))
                })
            }
            CoordinatorRequest::OpenOrder => {
                let order = engine.open_order(task, PROVIDER, now);
                Ok(CoordinatorReply::Order(order.cloned().map(Box::new)))
            }
            CoordinatorRequest::Record(record) => {
                let asked = (engine, &self.disk);
                match past_rounds::verdict(asked, record.order, record.digest())? {
                    Some(verdict) => verdict.map(CoordinatorReply::Verdict),
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
        world: &SimContext,
        ask: &CoordinatorRequest,
        rejection: &Rejection,
        now: Timestamp,
    ) -> Option<CoordinatorReply> {
        let CoordinatorRequest::Upload(header, _) = ask else { return None };
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
        planted.then_some(CoordinatorReply::Receipt(receipt))
    }
}

fn publish(world: &SimContext) -> Prepared {
    let spec = world.setup.spec.clone();
    let open = world.ledger_link(ME).task(spec.id()).map_err(|error| from_ledger(&error))?;
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
    needs_event(Event::TaskPublished { spec: Box::new(spec), model_bytes, update_bytes })
}

fn registration(world: &SimContext, from: ProcessId, role: Role) -> Registration {
    let wallet = account_of(from);
    Registration {
        market: world.setup.spec.market,
        wallet,
        node_key: NodeKey(blob_digest(&wallet.0).0),
        role,
        expires: world.clock(ME).saturating_add_ms(EXPIRY_MS),
        wallet_signature: WalletSignature([0; 65]),
        node_signature: DUMMY_SIGNATURE,
    }
}

/// The bond of a participant; zero after an unbond request.
fn bond(world: &SimContext, account: Address) -> Result<Amount, Rejection> {
    let bond = world.ledger_link(ME).bond_of(world.setup.spec.id(), account);
    let bond = bond.map_err(|error| from_ledger(&error))?;
    Ok(if bond.release.is_some() { Amount::ZERO } else { bond.amount })
}

fn check_pledge(world: &SimContext, provider: Address) -> Result<(), Rejection> {
    let (way, spec) = (world.ledger_link(ME), &world.setup.spec);
    let pledged = way.is_pledged(spec.id(), provider).map_err(|error| from_ledger(&error))?;
    let stake = way.stake_of(provider).map_err(|error| from_ledger(&error))?;
    if pledged && stake.release.is_none() && stake.amount >= spec.budget.stake_min {
        return Ok(());
    }
    reject(ErrorCode::StakeTooSmall, "the stake pledged to the task is too small")
}

/// The disclosed report and offer of every round, and the errors of unreadable rounds.
pub(super) fn all_rounds(
    engine: &Engine,
    machine: &SimDisk,
    world: &SimContext,
) -> (Vec<(Report, Offer)>, Vec<String>) {
    let id = world.setup.spec.id();
    let rounds = engine.state().tasks.get(&id).map_or(0, |task| task.rounds.len());
    let (mut read, mut lost) = (Vec::new(), Vec::new());
    for round in 1..=rounds as u32 {
        match past_rounds::past_round((engine, machine), id, RoundNumber(round)) {
            Ok(past) => read.push((disclosed_report(engine, &past.report, world.bug), past.offer)),
            Err(why) => lost.push(format!("round {round}: {why}")),
        }
    }
    (read, lost)
}

/// The disclosed report. Planted bug: every payout is rounded up.
fn disclosed_report(engine: &Engine, report: &Report, bug: Option<Bug>) -> Report {
    if bug != Some(Bug::PayoutRounding) {
        return report.clone();
    }
    let before = florin_protocol::RoundNumber(report.scope.round.0.saturating_sub(1));
    let before = engine.report(report.scope.task, before).ok();
    round_report_up(report, before)
}

/// Planted bug: the settlement of the rounded report.
pub(super) fn plant_rounded_settlement(engine: &Engine, job: &mut EffectJob) {
    let EffectJob::Ledger(job) = job else { return };
    if let LedgerJob::Post { settlement: posted, .. } = job.as_mut()
        && let Ok(report) = engine.report(posted.task, posted.round)
    {
        let report = disclosed_report(engine, report, Some(Bug::PayoutRounding));
        *posted = Settlement::from_report(&report, report.digest());
    }
}

/// The report with cumulative totals rounded up to millionths, and a root and a total that match
/// them.
fn round_report_up(report: &Report, before: Option<&Report>) -> Report {
    let mut report = report.clone();
    let mut total = Amount::ZERO;
    for standing in report.account_totals.values_mut() {
        standing.data = round_up(standing.data);
        total = total.plus(standing.data).unwrap_or_default();
    }
    report.data_total = total;
    let old = before.map(|before| round_report_up(before, None));
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
