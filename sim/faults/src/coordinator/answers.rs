//! What the coordinator's server does: questions become events, and what became of them becomes an answer.

use florin_coordinator::host::{Asked, Job, LedgerJob};
use florin_engine::{Engine, Event, Verdict, Visibility};
use florin_ledger::{Ledger, LedgerError, Settlement, Terms};
use florin_protocol::{
    Address, Amount, Canonical, Code, Enrol, NodeKey, Offer, Registration, Rejection, Report, Role,
    Round, TaskView, Tick, UpdateHeader, WalletSignature, WorkRecord, blob_digest, totals_tree,
};
use florin_store::is_full;
use florin_work::Committed;

use super::past;
use super::{Coordinator, ME, Plan, Running, Waiting};
use crate::bugs::Bug;
use crate::disk::Machine;
use crate::message::{Ask, Reply, UNSIGNED, unsigned};
use crate::network::Node;
use crate::task::{PROVIDER, account_of};
use crate::world::World;

/// How long a registration holds, in milliseconds.
const YEAR_MS: u64 = 365 * 24 * 3_600 * 1_000;
/// How long a wish to take part may be under way, in milliseconds.
const EXPIRY_MS: u64 = 600_000;
/// Base units of a millionth of a florin.
const MICRO_UNITS: u128 = 1_000_000_000_000;

/// What a question needs before it can be answered.
enum Needs {
    /// Nothing.
    Nothing,
    /// That the engine is told this.
    Event(Box<Event>),
}

type Prepared = Result<Needs, Rejection>;

fn told(event: Event) -> Prepared {
    Ok(Needs::Event(Box::new(event)))
}

fn reject<T>(code: Code, message: impl Into<String>) -> Result<T, Rejection> {
    Err(Rejection::new(code, message))
}

fn of_ledger(error: &LedgerError) -> Rejection {
    match error {
        LedgerError::Refused(refusal) => Rejection::new(Code::LedgerRefused, refusal.to_string()),
        other => Rejection::new(Code::Internal, other.to_string()),
    }
}

fn of_disk(error: &std::io::Error) -> Rejection {
    let code = if is_full(error) { Code::StorageFull } else { Code::Internal };
    Rejection::new(code, error.to_string())
}

impl Coordinator {
    /// Does what comes before a turn: asks the ledger, checks and keeps bytes.
    pub(super) fn prepare(
        &self,
        world: &mut World,
        running: &Running,
        waiting: Vec<Waiting>,
    ) -> (Vec<Asked>, Vec<Plan>) {
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
                            asked.push(Asked::Write(event));
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
                Committed::read(&world.cast.spec, &world.cast.holdout)?;
                let digest = self.machine.put(&world.cast.holdout);
                let digest = digest.map_err(|error| of_disk(&error))?;
                told(Event::HoldoutArrived { task, digest })
            }
            Ask::Register(role) => told(Event::Registered(registration(world, from, *role))),
            Ask::Enrol => {
                let (market, sender) = (world.cast.spec.market, account_of(from));
                let bond = bond(world, sender)?;
                let expires = world.clock(ME).after_ms(EXPIRY_MS);
                let enrol = unsigned(Enrol { market, task, sender, expires });
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

    /// The bytes are checked and kept before the engine hears of them.
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
        // Planted: what is late by its own clock is not looked at twice.
        let late = world.bug == Some(Bug::LateUpdateAccepted);
        let checked = if late { Ok(Verdict::New) } else { engine.check(&event, now) };
        if checked? == Verdict::Repeat {
            return Ok(Needs::Nothing);
        }
        if blob_digest(bytes) != header.update {
            return reject(Code::CommitMismatch, "the bytes are not those that were committed to");
        }
        florin_work::inspect_update(&world.cast.spec, bytes)?;
        self.machine.put(bytes).map_err(|error| of_disk(&error))?;
        told(event)
    }

    fn record(&self, world: &mut World, engine: &Engine, record: &WorkRecord) -> Prepared {
        if engine.find_order(record.order).is_none() {
            return reject(Code::WorkGone, "no such order was ever given");
        }
        check_pledge(world, record.provider)?;
        told(Event::WorkRecorded { record: unsigned(record.clone()), agrees: None })
    }

    /// The answer to a question, by what is durable.
    pub(super) fn answer(&self, world: &mut World, from: Node, ask: &Ask, now: Tick) -> Reply {
        let answered = match self.core() {
            Some(core) => self.answer_by(world, core.engine(), from, ask, now),
            None => reject(Code::Internal, "the coordinator is stopping"),
        };
        answered.unwrap_or_else(Reply::Refused)
    }

    fn answer_by(
        &self,
        world: &World,
        engine: &Engine,
        from: Node,
        ask: &Ask,
        now: Tick,
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
                let missing = || Rejection::new(Code::Internal, "the update was just taken");
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
                    // A provider with the order may read what the order names.
                    engine.check_order_names(task, *digest)?;
                    if !(from == Node::Provider && engine.has_order(task, PROVIDER)) {
                        return reject(Code::NotYetPublic, "not yet");
                    }
                }
                let bytes = self.machine.get(*digest);
                bytes.map(Reply::Bytes).map_err(|error| {
                    Rejection::new(Code::NotFound, format!("blob {digest}: {error}"))
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
                    None => reject(Code::TooEarly, "taken but not verified yet: send it again"),
                }
            }
        }
    }

    /// Planted: a receipt for what the journal could not take.
    pub(super) fn planted_receipt(
        &self,
        world: &World,
        ask: &Ask,
        rejection: &Rejection,
        now: Tick,
    ) -> Option<Reply> {
        let Ask::Upload(header, _) = ask else { return None };
        let planted = world.bug == Some(Bug::ReceiptWithoutRecord)
            && matches!(rejection.code, Code::StorageFull | Code::Internal);
        let task = self.core()?.engine().state().tasks.get(&header.scope.task)?;
        let order = task.running()?.commits.get(&header.sender)?.order;
        let (scope, sender, update) = (header.scope, header.sender, header.digest());
        let receipt = florin_protocol::Receipt { scope, sender, update, at: now, order };
        planted.then_some(Reply::Receipt(receipt))
    }
}

fn publish(world: &World) -> Prepared {
    let spec = world.cast.spec.clone();
    let open = world.way(ME).task(spec.id()).map_err(|error| of_ledger(&error))?;
    let Some(open) = open else {
        return reject(Code::NotFunded, "no escrow is open for this task");
    };
    if open.closed || open.terms != Terms::of(&spec) {
        return reject(Code::NotFunded, "the ledger has closed it, or has other terms");
    }
    let model_bytes = florin_work::model_bytes(&spec);
    let update_bytes = florin_work::update_bytes(&spec);
    told(Event::Published { spec: Box::new(spec), model_bytes, update_bytes })
}

fn registration(world: &World, from: Node, role: Role) -> Registration {
    let wallet = account_of(from);
    Registration {
        market: world.cast.spec.market,
        wallet,
        node_key: NodeKey(blob_digest(&wallet.0).0),
        role,
        expires: world.clock(ME).after_ms(YEAR_MS),
        wallet_signature: WalletSignature([0; 65]),
        node_signature: UNSIGNED,
    }
}

/// What a participant has at risk; nothing if it has asked for it back.
fn bond(world: &World, account: Address) -> Result<Amount, Rejection> {
    let bond = world.way(ME).bond_of(world.cast.spec.id(), account);
    let bond = bond.map_err(|error| of_ledger(&error))?;
    Ok(if bond.release.is_some() { Amount::ZERO } else { bond.amount })
}

fn check_pledge(world: &World, provider: Address) -> Result<(), Rejection> {
    let (way, spec) = (world.way(ME), &world.cast.spec);
    let pledged = way.pledged(spec.id(), provider).map_err(|error| of_ledger(&error))?;
    let stake = way.stake_of(provider).map_err(|error| of_ledger(&error))?;
    if pledged && stake.release.is_none() && stake.amount >= spec.budget.stake_min {
        return Ok(());
    }
    reject(Code::StakeTooSmall, "a stake must be pledged to the task")
}

/// Every round's report and offer, as they are shown; and of those that cannot be, why.
pub(super) fn all_rounds(
    engine: &Engine,
    machine: &Machine,
    world: &World,
) -> (Vec<(Report, Offer)>, Vec<String>) {
    let id = world.cast.spec.id();
    let rounds = engine.state().tasks.get(&id).map_or(0, |task| task.past.len());
    let (mut read, mut lost) = (Vec::new(), Vec::new());
    for round in 1..=rounds as u32 {
        match past::past((engine, machine), id, Round(round)) {
            Ok(past) => read.push((shown(engine, &past.report, world.bug), past.offer)),
            Err(why) => lost.push(format!("round {round}: {why}")),
        }
    }
    (read, lost)
}

/// A report as it is shown. Planted: everybody's pay is rounded up.
fn shown(engine: &Engine, report: &Report, bug: Option<Bug>) -> Report {
    if bug != Some(Bug::PayoutRounding) {
        return report.clone();
    }
    let before = florin_protocol::Round(report.scope.round.0.saturating_sub(1));
    let before = engine.report(report.scope.task, before).ok();
    rounded_up(report, before)
}

/// Planted: the settlement of a report that is rounded up.
pub(super) fn round_settlement_up(engine: &Engine, job: &mut Job) {
    let Job::Ledger(job) = job else { return };
    if let LedgerJob::Post { settlement: posted, .. } = job.as_mut()
        && let Ok(report) = engine.report(posted.task, posted.round)
    {
        let report = shown(engine, report, Some(Bug::PayoutRounding));
        *posted = Settlement::from_report(&report, report.digest());
    }
}

/// Planted: an amount rounded up to a millionth.
pub(super) fn up(amount: Amount) -> Amount {
    Amount::from_units(amount.units().next_multiple_of(MICRO_UNITS))
}

/// The same report with running totals that are whole millionths, each of them rounded up, and a root and a total that
/// add up to it.
fn rounded_up(report: &Report, before: Option<&Report>) -> Report {
    let mut report = report.clone();
    let mut total = Amount::ZERO;
    for standing in report.standings.values_mut() {
        standing.data = up(standing.data);
        total = total.plus(standing.data).unwrap_or_default();
    }
    report.data_total = total;
    let old = before.map(|before| rounded_up(before, None));
    let standings = &report.standings;
    for line in &mut report.lines {
        let now = standings.get(&line.account).map(|standing| standing.data);
        let was = old.as_ref().and_then(|old| old.standings.get(&line.account));
        let was = was.map(|standing| standing.data).unwrap_or_default();
        line.payout = now.unwrap_or_default().minus(was).unwrap_or_default();
    }
    report.root_before = old.map(|old| old.root).unwrap_or_default();
    report.root = totals_tree(&report.standings).map(|tree| tree.root()).unwrap_or_default();
    report
}
