//! The members' part of one round: which members are online, their training, and when their updates
//! arrive at the market.

use std::collections::BTreeMap;
use std::ops::Range;

use florin_learning::engine::TrainError;
use florin_learning::{ModelSpec, Reference, parallel_map};
use florin_protocol::RoundNumber;
use florin_work::training;

use super::adaptation::EFFORTS;
use super::{Simulation, push_newest};
use crate::devices;
use crate::error::SimError;
use crate::market::{Arrival, account};
use crate::member_updates::{
    CopyTargets, Knowledge, MemberTraining, MemberTrainingError, SentUpdate, TrainingResult,
    updates_to_send,
};
use crate::population::Member;
use crate::random::{stream, uniform};
use crate::scenario::Scenario;
use crate::strategy::Strategy;

/// Bytes per megabyte.
const MEGABYTE: f64 = 1e6;
/// Approximate bytes of an update in addition to its parameters.
const HEADER_BYTES: f64 = 300.0;
/// Bytes per parameter.
const NUMBER_BYTES: f64 = 4.0;

/// A member that works in a round, its selected identities, and the index of its effort.
struct MemberTask {
    member: usize,
    asked: Vec<u32>,
    effort: usize,
}

/// A member's task and the result of its training.
struct MemberWork {
    task: MemberTask,
    learned: TrainingResult,
}

impl Simulation<'_> {
    /// Simulates the members' part of the open round and returns the updates that they send.
    pub(super) fn simulate_members(
        &mut self,
        base: &[f32],
        threads: usize,
    ) -> Result<Vec<Arrival>, SimError> {
        let there = self.online_cohort()?;
        let round = self.rounds.len() as u64 + 1;
        let tasks = self.member_tasks(there, round);
        let members = &self.population.members;
        let number = u32::try_from(round).unwrap_or(u32::MAX);
        let how = training(self.market.spec(), RoundNumber(number));
        let job = |task: &MemberTask| MemberTraining {
            member: &members[task.member],
            how: &how,
            model: &self.model,
            base,
            seed: self.seed,
            round,
            effort: EFFORTS[task.effort],
            first_update: self.first_updates.get(&task.member).map(Vec::as_slice),
            holdout: &self.population.holdout,
            disclosed: &self.disclosed,
            colluders: {
                let clique = colluders(members, task.member);
                (clique.start, clique.end)
            },
        };
        // Only a member's own training can make the training from the initial model diverge.
        let is_first = self.steps.is_empty();
        let learned = parallel_map(threads, tasks, |task| {
            let learned = match job(&task).train_by_strategy(&mut Reference::new(), &task.asked) {
                Err(MemberTrainingError::Train(TrainError::Diverged { step })) if !is_first => {
                    TrainingResult { deltas: Vec::new(), steps: step, diverged: true }
                }
                learned => learned?,
            };
            Ok::<MemberWork, MemberTrainingError>(MemberWork { task, learned })
        });
        let turns = learned.into_iter().collect::<Result<Vec<MemberWork>, _>>()?;
        let newest = self.copy_targets(&turns);
        let readable = self.readable_copy_targets(newest.clone());
        let sent: Vec<Vec<SentUpdate>> = turns
            .iter()
            .map(|turn| {
                let mates = colluder_updates(&turns, members, turn.task.member);
                let knows = Knowledge {
                    steps: &self.steps,
                    copy_targets: &readable,
                    colluder_updates: &mates,
                    earlier_task: self.earlier_task.as_ref(),
                };
                updates_to_send(&job(&turn.task), &turn.learned, &knows)
            })
            .collect();
        push_newest(&mut self.copy_targets, newest);
        self.record_first_updates(&turns);
        let arrivals = turns.iter().zip(sent).flat_map(|(turn, sent)| self.arrivals(turn, sent));
        let arrivals: Vec<Arrival> = arrivals.collect();
        for turn in &turns {
            let cost = self.cost(turn);
            self.members[turn.task.member].cost += cost;
            self.habits[turn.task.member].record_work(turn.task.effort, cost);
        }
        Ok(arrivals)
    }

    /// The tasks of the members that work in a round, each with its effort.
    fn member_tasks(&self, there: Vec<(usize, Vec<u32>)>, round: u64) -> Vec<MemberTask> {
        let task = |(member, asked): (usize, Vec<u32>)| {
            let rng = &mut stream(self.seed, "effort", [member as u64, round]);
            let effort = match self.population.members[member].strategy {
                Strategy::AdaptiveEffort => self.habits[member].choose_effort(uniform(rng)),
                _ => EFFORTS.len() - 1,
            };
            MemberTask { member, asked, effort }
        };
        there.into_iter().map(task).collect()
    }

    /// Online members that take part, with their identities that are in the cohort. Members that
    /// were silent before enrol again.
    fn online_cohort(&mut self) -> Result<Vec<(usize, Vec<u32>)>, SimError> {
        let Some(offer) = self.market.offer() else { return Ok(Vec::new()) };
        let mut asked: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        let begins = offer.cohort.iter().filter(|who| !self.late.contains_key(who));
        for (member, identity) in begins.filter_map(|who| self.owner.get(who)) {
            asked.entry(*member).or_default().push(*identity);
        }
        // Only hoarding members look at it.
        let can_hoard = self.groups.iter().any(|group| group.strategy == Strategy::Hoard);
        let seconds = if can_hoard { self.expected_seconds(&offer.cohort) } else { 0.0 };
        let (moment, now) = (self.availability_index(), self.market.now().0);
        let (mut there, mut again) = (Vec::new(), Vec::new());
        (self.online, self.too_small) = (0, 0);
        for member in &self.population.members {
            let group = self.groups[member.group];
            let online = member.is_online(&group.online, moment, now, self.seed);
            let habits = &mut self.habits[member.number];
            let comes = online && habits.participates(group.outside_option, moment);
            self.online += usize::from(comes);
            let identities = asked.remove(&member.number).unwrap_or_default();
            self.members[member.number].selected += identities.len() as u32;
            self.too_small += if member.sends_nothing() { identities.len() } else { 0 };
            if comes && habits.must_re_enrol {
                habits.must_re_enrol = false;
                again.push(member.number);
            }
            let hoards = member.strategy == Strategy::Hoard && !identities.is_empty();
            let is_wanted = !hoards || habits.is_fast(seconds);
            let comes = comes && is_wanted;
            match (identities.is_empty(), comes) {
                (false, true) => there.push((member.number, identities)),
                (false, false) => habits.must_re_enrol = true,
                (true, _) => {}
            }
        }
        self.re_enrol(&again)?;
        Ok(there)
    }

    /// The updates that a copier can read before it commits, newest first.
    fn readable_copy_targets(&self, newest: Option<CopyTargets>) -> Vec<CopyTargets> {
        let mut readable = self.copy_targets.clone();
        if !self.scenario.task.commit_reveal {
            push_newest(&mut readable, newest);
        }
        readable
    }

    /// Keeps the first update of each member that repeats it.
    fn record_first_updates(&mut self, turns: &[MemberWork]) {
        for MemberWork { task, learned } in turns {
            let repeats = self.population.members[task.member].strategy == Strategy::Repeat;
            if let Some(update) = learned.first_update().filter(|_| repeats) {
                self.first_updates.entry(task.member).or_insert_with(|| update.clone());
            }
        }
    }

    /// The updates of the two honest members with the most rows, if one of them is online.
    fn copy_targets(&self, turns: &[MemberWork]) -> Option<CopyTargets> {
        let members = &self.population.members;
        let of = |turn: &&MemberWork| &members[turn.task.member];
        let mut honest: Vec<&MemberWork> =
            turns.iter().filter(|turn| of(turn).strategy.is_honest()).collect();
        honest.sort_by_key(|turn| (std::cmp::Reverse(of(turn).rows.rows()), of(turn).number));
        let mut updates = honest.iter().map(|turn| turn.learned.first_update().cloned());
        let (best, second) = (updates.next().flatten()?, updates.next().flatten());
        Some(CopyTargets { best, second })
    }

    fn update_bytes(&self) -> f64 {
        update_bytes(self.scenario, &self.model)
    }

    /// Arrival times of the updates that a member sends.
    fn arrivals(&self, turn: &MemberWork, sent: Vec<SentUpdate>) -> Vec<Arrival> {
        let member = &self.population.members[turn.task.member];
        let ms = |seconds: f64| (seconds * 1e3).ceil() as u64;
        let line = self.update_bytes() / member.bytes_per_second;
        let work = turn.learned.steps as f64 / member.steps_per_second;
        // A copier commits after the update that it copies was committed.
        let copies = matches!(member.strategy, Strategy::Copy { .. });
        let waits =
            if copies && !self.scenario.task.commit_reveal { self.commit_deadline_ms() } else { 0 };
        let (commit_ms, upload_ms) = match &member.devices {
            Some(round) => (round.times.commit_ms(turn.learned.steps), round.times.upload_ms()),
            None => (ms(line + work).saturating_add(1), ms(line).saturating_add(1)),
        };
        let arrival = |sent: SentUpdate| Arrival {
            account: account(member.number, sent.identity),
            rows: sent.rows,
            delta: sent.delta,
            commit_ms: commit_ms.max(waits),
            upload_ms,
            base_model: None,
            begun: None,
        };
        // A participant program never sends an update with a value that is not finite.
        let is_sent = |sent: &SentUpdate| {
            turn.task.asked.contains(&sent.identity) && sent.delta.iter().all(|x| x.is_finite())
        };
        sent.into_iter().filter(is_sent).map(arrival).collect()
    }

    /// The latest time at which a member can commit.
    pub(super) fn commit_deadline_ms(&self) -> u64 {
        (self.scenario.task.train_s * 1e3).floor() as u64
    }

    /// Cost of a member's work in a round, in florins.
    fn cost(&self, turn: &MemberWork) -> f64 {
        let member = &self.population.members[turn.task.member];
        let group = self.groups[member.group];
        let uploads = turn.task.asked.len() as f64;
        let megabytes = (1.0 + uploads) * self.update_bytes() / MEGABYTE;
        let steps = turn.learned.steps;
        let hours = member.devices.map_or(0.0, |round| round.times.device_hours(steps));
        group.cost.per_step * steps as f64
            + group.cost.per_megabyte * megabytes
            + group.cost.per_device_hour.unwrap_or(0.0) * hours
    }
}

/// Bytes of an update of the scenario's model.
pub(super) fn update_bytes(scenario: &Scenario, model: &ModelSpec) -> f64 {
    if let Some(step) = &scenario.task.step {
        return devices::update_bytes(step);
    }
    model.parameters() as f64 * NUMBER_BYTES + HEADER_BYTES
}

/// The colluders of a member: all members of its group, or the pair, triple and so on to which it
/// belongs.
fn colluders(members: &[Member], of: usize) -> Range<usize> {
    let group = members[of].group;
    let first = members.partition_point(|member| member.group < group);
    let end = members.partition_point(|member| member.group <= group);
    match members[of].strategy.colluder_count() {
        0 => first..end,
        size => {
            let from = first + (of - first) / size * size;
            from..(from + size).min(end)
        }
    }
}

/// The updates of a member's colluders in this round.
fn colluder_updates<'a>(turns: &'a [MemberWork], members: &[Member], of: usize) -> Vec<&'a [f32]> {
    let clique = colluders(members, of);
    let together = turns.iter().filter(|turn| clique.contains(&turn.task.member));
    together.filter_map(|turn| turn.learned.first_update().map(Vec::as_slice)).collect()
}
