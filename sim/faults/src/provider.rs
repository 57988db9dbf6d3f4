//! A provider: stakes, requests work, computes the result from the blobs of the order, sends its
//! record until it receives a verdict, and withdraws pay and stake at the end.

use std::collections::BTreeMap;

use florin_learning::Reference;
use florin_learning::mapped::UNLIMITED_MEMORY;
use florin_ledger::{Ledger, LedgerError, Refusal};
use florin_participant::draw_by_proof;
use florin_protocol::{
    Canonical, Digest, DisclosedRows, ErrorCode, Role, TaskPhase, WorkOrder, WorkRecord, WorkResult,
};
use florin_work::{EarlierUpdateBlobs, ValuationInputs};

use super::client::Line;
use super::ledger::Unsigned;
use super::message::{Ask, Reply};
use super::network::Node;
use super::task::PROVIDER;
use super::world::{What, World};

const ME: Node = Node::Provider;
/// Interval between two requests for work, in milliseconds.
const POLL_MS: u64 = 250;
/// Delay before a ledger request is retried.
const LEDGER_MS: u64 = 150;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Looks,
    Registers,
    Stakes,
    Asks,
    Fetches,
    Sends,
    Draws,
    HasStakeBack,
    IsDone,
}

/// The state that a crash destroys.
#[derive(Clone, Debug)]
struct Memory {
    doing: Doing,
    /// Whether it is registered and has pledged its stake, as far as it knows since its last start.
    is_pledged: bool,
    order: Option<Box<WorkOrder>>,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

impl Memory {
    const fn new() -> Self {
        Self { doing: Doing::Looks, is_pledged: false, order: None, blobs: BTreeMap::new() }
    }
}

/// The provider.
#[derive(Clone, Debug)]
pub(super) struct Provider {
    memory: Memory,
    /// Persistent state: the signed record of each order.
    records: BTreeMap<Digest, WorkRecord>,
    line: Line,
    life: u64,
    up: bool,
    finished: bool,
}

impl Provider {
    /// A provider before its first step.
    #[must_use]
    pub(super) const fn new() -> Self {
        Self {
            memory: Memory::new(),
            records: BTreeMap::new(),
            line: Line::new(ME),
            life: 0,
            up: true,
            finished: false,
        }
    }

    /// Whether its task is over and its pay and stake are withdrawn.
    #[must_use]
    pub(super) const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Schedules the first step.
    pub(super) fn begin(&mut self, world: &mut World) {
        let pause = world.some(1_000);
        self.line.wake(world, pause);
    }

    fn dies(&mut self, world: &mut World) -> bool {
        let crashes = world.weather.crashes;
        if !world.chance(crashes) {
            return false;
        }
        world.tell(ME, format_args!("crashes while {:?}", self.memory.doing));
        self.memory = Memory::new();
        self.line.drop_all();
        self.up = false;
        self.life += 1;
        let pause = 100 + world.some(5_000);
        world.after(pause, What::Starts { node: ME, life: self.life });
        true
    }

    /// Restarts the process.
    pub(super) fn start(&mut self, world: &mut World, life: u64) {
        if life == self.life && !self.up {
            self.up = true;
            self.line.wake(world, 1);
        }
    }

    /// Handles a timer.
    pub(super) fn wakes(&mut self, world: &mut World, ticket: u64) {
        if !self.up || !self.line.is_newest(ticket) || self.line.waits(world) {
            return;
        }
        match self.memory.doing {
            Doing::Stakes => self.stake(world),
            Doing::Draws => self.says(world, Doing::Draws, Ask::Proof(PROVIDER)),
            Doing::HasStakeBack => self.have_stake_back(world),
            Doing::Sends => self.fetch(world),
            Doing::IsDone => {}
            Doing::Asks if self.memory.is_pledged => self.says(world, Doing::Asks, Ask::Work),
            _ => self.says(world, Doing::Looks, Ask::Look),
        }
    }

    fn says(&mut self, world: &mut World, doing: Doing, ask: Ask) {
        self.memory.doing = doing;
        self.line.ask(world, ask);
    }

    fn later(&mut self, world: &mut World, doing: Doing, pause: u64) {
        self.memory.doing = doing;
        self.line.wake(world, pause);
    }

    /// Handles a response.
    pub(super) fn hear(&mut self, world: &mut World, id: u64, reply: Reply) {
        if !self.up {
            return;
        }
        let Some((ask, reply)) = self.line.answered(id, reply) else { return };
        if self.dies(world) {
            return;
        }
        match (ask, reply) {
            (Ask::Look, Reply::View(view)) => match view.phase {
                TaskPhase::Done => self.says(world, Doing::Draws, Ask::Proof(PROVIDER)),
                _ if !self.memory.is_pledged => {
                    self.says(world, Doing::Registers, Ask::Register(Role::Provider));
                }
                _ => self.says(world, Doing::Asks, Ask::Work),
            },
            (Ask::Register(_), Reply::Done) => self.stake(world),
            (Ask::Work, Reply::Order(Some(order))) => {
                self.memory.order = Some(order);
                self.memory.blobs.clear();
                self.fetch(world);
            }
            (Ask::Blob(digest), Reply::Bytes(bytes)) => {
                self.memory.blobs.insert(digest, bytes);
                self.fetch(world);
            }
            (Ask::Record(_), Reply::Verdict(units)) => {
                world.tell(ME, format_args!("is paid for {units} units"));
                self.later(world, Doing::Looks, 1);
            }
            (Ask::Record(_), Reply::Refused(rejection)) => {
                let waits = rejection.code == ErrorCode::TooEarly;
                world.tell(ME, format_args!("record refused: {rejection}"));
                if rejection.code == ErrorCode::WorkResultMismatch {
                    world.auditor.found("honest work is verified", rejection.to_string());
                }
                if waits {
                    self.later(world, Doing::Sends, POLL_MS);
                } else {
                    self.later(world, Doing::Looks, POLL_MS);
                }
            }
            (Ask::Proof(_), reply) => self.proven(world, reply),
            // The task was never published and never will be.
            (Ask::Look, Reply::Refused(_)) if world.is_closed() => self.have_stake_back(world),
            _ => self.later(world, Doing::Looks, POLL_MS),
        }
    }

    fn stake(&mut self, world: &mut World) {
        self.memory.doing = Doing::Stakes;
        let spec = &world.cast.spec;
        let (way, by, task) = (world.way(ME), Unsigned(PROVIDER), spec.id());
        let pledge = || -> Result<(), LedgerError> {
            let there = way.stake_of(PROVIDER)?;
            if there.amount < spec.budget.stake_min || there.release.is_some() {
                let missing = spec.budget.stake_min.minus(there.amount).unwrap_or_default();
                way.stake(&by, missing.max(florin_protocol::Amount::from_units(1)))?;
            }
            way.pledge(&by, task).map(drop)
        };
        let pledged = pledge();
        world.send_late();
        match pledged {
            Ok(()) => {
                self.memory.is_pledged = true;
                self.says(world, Doing::Asks, Ask::Work);
            }
            Err(LedgerError::Unavailable(_)) => self.line.wake(world, LEDGER_MS),
            Err(error) => {
                world.tell(ME, format_args!("cannot pledge: {error}"));
                self.later(world, Doing::Looks, 4 * POLL_MS);
            }
        }
    }

    /// Fetches the next missing blob of the order; with all blobs, computes and sends the record.
    fn fetch(&mut self, world: &mut World) {
        let Some(order) = self.memory.order.clone() else {
            return self.later(world, Doing::Looks, 1);
        };
        let digest = order.digest();
        if let Some(record) = self.records.get(&digest).cloned() {
            return self.says(world, Doing::Sends, Ask::Record(Box::new(record)));
        }
        let updates = order.entries.iter().map(|entry| entry.update);
        let mut all = [order.base_model, order.disclosed_rows].into_iter().chain(updates);
        let missing = all.find(|digest| !self.memory.blobs.contains_key(digest));
        let last = order.earlier_updates.iter().map(|(_, digest)| *digest);
        let mut earlier = order.previous_models.iter().copied().chain(last);
        let missing = missing.or_else(|| earlier.find(|d| !self.memory.blobs.contains_key(d)));
        if let Some(missing) = missing {
            return self.says(world, Doing::Fetches, Ask::Blob(missing));
        }
        let Some(result) = self.compute(world, &order) else {
            return self.later(world, Doing::Looks, POLL_MS);
        };
        let market = world.cast.spec.market;
        let record = WorkRecord { market, order: digest, provider: PROVIDER, result };
        self.records.insert(digest, record.clone());
        self.says(world, Doing::Sends, Ask::Record(Box::new(record)));
    }

    fn compute(&self, world: &World, order: &WorkOrder) -> Option<WorkResult> {
        let blob = |digest: Digest| self.memory.blobs.get(&digest).map(Vec::as_slice);
        let shown = DisclosedRows::from_bytes(blob(order.disclosed_rows)?).ok()?;
        let drawn: Vec<u32> = shown.rows.iter().map(|row| row.index).collect();
        let updates: Vec<&[u8]> =
            order.entries.iter().map(|entry| blob(entry.update)).collect::<Option<_>>()?;
        let previous: Vec<&[u8]> =
            order.previous_models.iter().map(|digest| blob(*digest)).collect::<Option<_>>()?;
        let last: Vec<&[u8]> =
            order.earlier_updates.iter().map(|(_, digest)| blob(*digest)).collect::<Option<_>>()?;
        let inputs = ValuationInputs {
            spec: &world.cast.spec,
            base: blob(order.base_model)?,
            row_indices: &drawn,
            disclosed_rows: blob(order.disclosed_rows)?,
            entries: &order.entries,
            updates: &updates.as_slice(),
            previous_models: &previous.as_slice(),
            earlier_updates: EarlierUpdateBlobs {
                ids: &order.earlier_updates,
                bytes: &last.as_slice(),
            },
            scratch_space: &UNLIMITED_MEMORY,
        };
        florin_work::value_and_aggregate(&inputs, &mut Reference::new())
            .ok()
            .map(|outcome| outcome.result)
    }

    fn proven(&mut self, world: &mut World, reply: Reply) {
        let drawn = match reply {
            Reply::Proof(proof) => {
                let (way, by) = (world.way(ME), Unsigned(PROVIDER));
                let drawn = draw_by_proof(&way, &by, world.cast.spec.id(), proof);
                world.send_late();
                drawn.is_ok()
            }
            Reply::Refused(rejection) => rejection.code == ErrorCode::NotYetPublic,
            _ => false,
        };
        if drawn {
            self.have_stake_back(world);
        } else {
            self.later(world, Doing::Draws, LEDGER_MS);
        }
    }

    fn have_stake_back(&mut self, world: &mut World) {
        self.memory.doing = Doing::HasStakeBack;
        let (way, by) = (world.way(ME), Unsigned(PROVIDER));
        let back = || -> Result<bool, LedgerError> {
            let there = way.stake_of(PROVIDER)?;
            if there.amount.is_zero() {
                return Ok(true);
            }
            if there.release.is_none() {
                way.unstake(&by)?;
            }
            match way.withdraw_stake(&by) {
                Ok(_) => Ok(true),
                Err(LedgerError::Refused(Refusal::TooEarly { .. })) => Ok(false),
                Err(error) => Err(error),
            }
        };
        let is_back = back();
        world.send_late();
        if matches!(is_back, Ok(true)) {
            world.tell(ME, format_args!("is done"));
            self.finished = true;
            self.memory.doing = Doing::IsDone;
        } else {
            self.line.wake(world, LEDGER_MS);
        }
    }
}

impl Default for Provider {
    fn default() -> Self {
        Self::new()
    }
}
