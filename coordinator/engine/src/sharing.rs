//! Participants that several tasks share: which are busy for a task, and which it leaves to others
//! when it opens a round. [`florin_protocol::reserved_for_others`] decides.
//!
//! A task's standings are renewed before each event that may open its round. When a participant
//! becomes free, the tasks that wait for it are tried, the scarcest first.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{
    Address, EnrolRequest, SharedTask, Standing, TaskId, Timestamp, reserved_for_others,
};

use super::Engine;
use super::event::Event;
use super::state::{EngineState, TaskStage, TaskState};

/// The number of rounds that an account works on at a time, and the tasks in which it stated it.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct AccountLimit {
    /// The number, as stated last: at least 1.
    pub at_once: u32,
    /// The tasks.
    pub tasks: BTreeSet<TaskId>,
}

/// The room of an account for another round.
enum Room {
    /// None: it works for this task.
    None(TaskId),
    /// For one more round.
    Last,
    /// For several, or the account stated no limit here.
    More,
}

impl EngineState {
    /// The room of an account for a round of a task.
    fn room(&self, account: Address, task: TaskId) -> Room {
        let Some(limit) = self.limits.get(&account).filter(|it| it.tasks.contains(&task)) else {
            return Room::More;
        };
        let at_once = usize::try_from(limit.at_once).unwrap_or(usize::MAX);
        let others = limit.tasks.iter().filter(|other| **other != task);
        let works_for = |other: &&TaskId| {
            self.tasks.get(*other).is_some_and(|other| other.waits_for_work_of(account))
        };
        let working: Vec<TaskId> = others.filter(works_for).take(at_once).copied().collect();
        match working.last() {
            Some(other) if working.len() >= at_once => Room::None(*other),
            _ if working.len().saturating_add(1) >= at_once => Room::Last,
            _ => Room::More,
        }
    }

    /// The accounts of a task that stated a limit in it.
    fn limited<'a>(&'a self, task: &'a TaskState) -> impl Iterator<Item = Address> + 'a {
        // The shorter of two lists is read.
        let is_short = self.limits.len() < task.enrolled.len();
        let listed = self.limits.iter().filter(move |_| is_short).map(|(account, _)| *account);
        let enrolled = task.enrolled.keys().filter(move |_| !is_short).copied();
        listed.chain(enrolled).filter(|account| {
            let limit = self.limits.get(account);
            task.enrolled.contains_key(account)
                && limit.is_some_and(|limit| limit.tasks.contains(&task.id))
        })
    }

    /// The standings of a task's accounts that follow from other tasks.
    fn shared_standings(&self, id: TaskId, now: Timestamp) -> BTreeMap<Address, Standing> {
        let Some(task) = self.tasks.get(&id) else { return BTreeMap::new() };
        let (mut standings, mut contended) = (BTreeMap::new(), BTreeSet::new());
        let mut others = BTreeSet::new();
        for account in self.limited(task) {
            match self.room(account, id) {
                Room::None(other) => {
                    standings.insert(account, Standing::Busy(other));
                }
                Room::Last => {
                    contended.insert(account);
                    let limit = self.limits.get(&account);
                    others.extend(limit.iter().flat_map(|limit| limit.tasks.iter().copied()));
                }
                Room::More => {}
            }
        }
        // Those whose trainings go on have the first places, and are left to no other task.
        let going_on = task.enrolled.keys().filter(|account| task.goes_on(**account));
        let going_on: BTreeSet<Address> =
            going_on.filter(|account| !standings.contains_key(*account)).copied().collect();
        let mut opening = self.shared_task(task, now);
        opening.places = opening.places.saturating_sub(going_on.len());
        opening.free.retain(|account| task.own_standing(*account) == Standing::Eligible);
        opening.free.retain(|account| !going_on.contains(account));
        if opening.free.len() <= opening.places {
            return standings;
        }
        let others = others.into_iter().filter(|other| *other != id);
        let others = others.filter_map(|other| self.tasks.get(&other));
        let others = others.filter(|other| other.needs_participants());
        let is_lost = |account: &Address| going_on.contains(account) && contended.contains(account);
        let others: Vec<SharedTask> = others
            .map(|other| {
                let mut other = self.shared_task(other, now);
                other.free.retain(|account| !is_lost(account));
                other
            })
            .collect();
        let reserved = reserved_for_others(&opening, &others, &contended);
        standings.extend(reserved.into_iter().map(|(who, other)| (who, Standing::Reserved(other))));
        standings
    }

    /// A task as others see it.
    fn shared_task(&self, task: &TaskState, now: Timestamp) -> SharedTask {
        let mut shared = task.as_shared(now);
        for account in self.limited(task) {
            if matches!(self.room(account, task.id), Room::None(_)) {
                shared.free.remove(&account);
            }
        }
        shared
    }
}

impl Engine {
    /// The accounts with a limit that work for these tasks.
    pub(super) fn working_for(&self, tasks: &[TaskId]) -> BTreeSet<Address> {
        if self.state.limits.is_empty() {
            return BTreeSet::new();
        }
        let tasks = tasks.iter().filter_map(|id| self.state.tasks.get(id));
        let cohorts = tasks.flat_map(|task| {
            let cohort = task.running().into_iter().flat_map(|running| &running.offer.cohort);
            let all = cohort.copied().chain(task.history.continuing());
            all.filter(|account| task.waits_for_work_of(*account))
        });
        cohorts.filter(|account| self.state.limits.contains_key(account)).collect()
    }

    /// Renews the standings of a task that follow from other tasks.
    pub(super) fn renew_shared(&mut self, id: TaskId, now: Timestamp) {
        let standings = match self.state.limits.is_empty() {
            true => BTreeMap::new(),
            false => self.state.shared_standings(id, now),
        };
        if let Some(task) = self.state.tasks.get_mut(&id) {
            task.shared = standings;
        }
    }

    /// Records the limit that an enrolment states, and renews the standings of the tasks that an event
    /// changes. A tick renews them one by one.
    pub(super) fn renew_before(&mut self, event: &Event, touched: &[TaskId], now: Timestamp) {
        self.note_limit(event);
        if !matches!(event, Event::Tick) {
            touched.iter().for_each(|id| self.renew_shared(*id, now));
        }
        let Event::Enrolled { enrol, .. } = event else { return };
        let EnrolRequest { sender, task, .. } = enrol.body;
        // A new account is not in the task yet.
        if let Room::None(other) = self.state.room(sender, task)
            && let Some(task) = self.state.tasks.get_mut(&task)
        {
            task.shared.insert(sender, Standing::Busy(other));
        }
    }

    /// Opens the rounds that wait for accounts which work no more, the scarcest task first. Returns
    /// the tasks whose state has changed.
    pub(super) fn open_for_freed(
        &mut self,
        worked: BTreeSet<Address>,
        touched: &[TaskId],
        now: Timestamp,
    ) -> Vec<TaskId> {
        let works = self.working_for(touched);
        let freed = worked.into_iter().filter(|account| !works.contains(account));
        let tasks = freed.filter_map(|account| self.state.limits.get(&account));
        let tasks: BTreeSet<TaskId> = tasks.flat_map(|it| it.tasks.iter().copied()).collect();
        let tasks = tasks.into_iter().filter_map(|id| self.state.tasks.get(&id));
        let waits = |task: &&TaskState| matches!(task.stage, TaskStage::Enrolling { .. });
        let mut waiting: Vec<SharedTask> =
            tasks.filter(waits).map(|task| self.state.shared_task(task, now)).collect();
        waiting.sort_by(SharedTask::by_scarcity);
        let mut changed = Vec::new();
        for SharedTask { task: id, .. } in waiting {
            self.renew_shared(id, now);
            if let Some(task) = self.state.tasks.get_mut(&id)
                && task.opens_now(now)
            {
                task.open_if_ready(now);
                changed.push(id);
            }
        }
        changed
    }

    /// Records the number of rounds that an account works on at a time. An enrolment without a number
    /// takes the task out.
    fn note_limit(&mut self, event: &Event) {
        let Event::Enrolled { enrol, .. } = event else { return };
        let EnrolRequest { sender, task, at_once, .. } = enrol.body;
        if at_once == 0 {
            if let Some(limit) = self.state.limits.get_mut(&sender) {
                limit.tasks.remove(&task);
                if limit.tasks.is_empty() {
                    self.state.limits.remove(&sender);
                }
            }
            return;
        }
        let mut tasks = self.state.limits.remove(&sender).unwrap_or_default().tasks;
        tasks.insert(task);
        tasks.retain(|id| self.state.tasks.get(id).is_some_and(|task| !task.is_over()));
        if !tasks.is_empty() {
            self.state.limits.insert(sender, AccountLimit { at_once, tasks });
        }
    }

    /// Whether an enrolment states another number than the last one.
    pub(super) fn changes_limit(&self, enrol: &EnrolRequest) -> bool {
        let known = self.state.limits.get(&enrol.sender);
        let known = known.filter(|limit| limit.tasks.contains(&enrol.task));
        known.map_or(0, |limit| limit.at_once) != enrol.at_once
    }
}

impl TaskState {
    /// Whether the account works for the task: its commit is awaited, or its training goes on until
    /// the next round opens. A task that waits for participants holds none, or else two tasks could
    /// wait for each other's.
    fn waits_for_work_of(&self, account: Address) -> bool {
        match &self.stage {
            TaskStage::Committing(running) => running.waits_for(account),
            TaskStage::Revealing(_) | TaskStage::Valuing(_) | TaskStage::Settling => {
                self.goes_on(account)
            }
            _ => false,
        }
    }

    /// Whether the account is in the middle of a training whose update can count in the next round.
    fn goes_on(&self, account: Address) -> bool {
        let rules = &self.spec.rounds;
        let round = self.current_round();
        let (trains, next) = match self.running() {
            None => (self.history.member(account).ongoing.is_some(), round.0),
            Some(running) => {
                let may = self.history.may_continue(rules.staleness, account, round);
                (running.waits_for(account) && may, round.0.saturating_add(1))
            }
        };
        let is_next = self.end.is_none() && next <= rules.count;
        let standing = || self.own_standing(account);
        trains && is_next && matches!(standing(), Standing::Eligible | Standing::Newcomer)
    }

    /// Whether the account works for other tasks and has no room for a round of this one.
    pub(super) fn is_busy(&self, account: Address) -> bool {
        matches!(self.shared.get(&account), Some(Standing::Busy(_)))
    }

    /// The standing of an account with a sufficient bond, beside other tasks.
    pub(super) fn standing_among(&self, account: Address, own: Standing) -> Standing {
        match (own, self.shared.get(&account)) {
            (Standing::Eligible | Standing::Newcomer | Standing::Reserve, Some(busy))
                if matches!(busy, Standing::Busy(_)) =>
            {
                *busy
            }
            (Standing::Eligible, Some(reserved)) => *reserved,
            (own, _) => own,
        }
    }

    /// Whether the task waits for participants, or will after the running round.
    fn needs_participants(&self) -> bool {
        let is_last = self.current_round().0 >= self.spec.rounds.count;
        let runs = self.running().is_some() && !is_last;
        self.end.is_none() && (runs || matches!(self.stage, TaskStage::Enrolling { .. }))
    }

    /// The task as others see it, without regard to busy accounts. While it waits beyond its target
    /// time, those that sit out count as well.
    fn as_shared(&self, now: Timestamp) -> SharedTask {
        let rounds = &self.spec.rounds;
        let (since, is_short) = match &self.stage {
            TaskStage::Enrolling { target_until } if self.rounds.is_empty() => {
                let begun = target_until.0.saturating_sub(rounds.enrol_ms);
                (Timestamp(begun), now >= *target_until)
            }
            TaskStage::Enrolling { target_until } => (*target_until, now >= *target_until),
            _ => (self.running().map_or(now, |running| running.offer.opened), false),
        };
        let needed = if is_short { rounds.cohort_min } else { rounds.cohort_target };
        let counts = |account: &Address| match self.own_standing(*account) {
            Standing::Eligible | Standing::Newcomer => true,
            Standing::Reserve => is_short,
            _ => false,
        };
        let mut free: BTreeSet<Address> = self.enrolled.keys().copied().filter(counts).collect();
        let supply = free.len();
        free.retain(|account| !self.waits_for_work_of(*account));
        let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        SharedTask {
            task: self.id,
            needed: size(needed),
            places: size(rounds.selection_size()),
            supply,
            returning: supply.saturating_sub(free.len()),
            free,
            waited_ms: now.ms_since(since),
            round_ms: rounds.round_ms(),
        }
    }
}
