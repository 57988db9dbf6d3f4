//! One round's work: who is there, what each learns, and what arrives at the market when.

use std::collections::BTreeMap;

use florin_learning::Reference;
use florin_protocol::Address;

use super::habits::EFFORTS;
use super::{Game, SimError};
use crate::draw::{stream, unit};
use crate::market::{Arrival, account};
use crate::parallel::each;
use crate::population::Member;
use crate::strategy::{ActError, Job, Knowledge, Learned, Sent, Strategy, act};

/// Bytes of a megabyte.
const MEGABYTE: f64 = 1e6;
/// Bytes of an update beside its numbers, about.
const HEADER_BYTES: f64 = 300.0;
/// Bytes of a number.
const NUMBER_BYTES: f64 = 4.0;

/// What somebody does in a round.
struct Turn {
    member: usize,
    effort: usize,
    learned: Learned,
}

impl Game<'_> {
    /// Everybody's turn in the open round.
    pub(super) fn turns(&mut self, base: &[f32], threads: usize) -> Result<Vec<Arrival>, SimError> {
        let there = self.who_comes()?;
        let round = self.rounds.len() as u64 + 1;
        let efforts: Vec<(usize, usize)> = there
            .iter()
            .map(|member| {
                let rng = &mut stream(self.seed, "effort", [*member as u64, round]);
                let effort = match self.population.members[*member].strategy {
                    Strategy::Effort => self.habits[*member].effort(unit(rng)),
                    _ => EFFORTS.len() - 1,
                };
                (*member, effort)
            })
            .collect();
        let members = &self.population.members;
        let job = |member: usize, effort: usize| Job {
            member: &members[member],
            how: &self.how,
            model: &self.model,
            base,
            seed: self.seed,
            round,
            effort: EFFORTS[effort],
        };
        let learned = each(threads, efforts, Reference::new, |engine, (member, effort)| {
            let learned = job(member, effort).learn(engine)?;
            Ok::<Turn, ActError>(Turn { member, effort, learned })
        });
        let turns = learned.into_iter().collect::<Result<Vec<Turn>, _>>()?;
        let idol = self.idol_of(&turns);
        let sent: Vec<Vec<Sent>> = turns
            .iter()
            .map(|turn| {
                let mates = mates(&turns, members, members[turn.member].group);
                let read = if self.scenario.task.commit_reveal { &self.idol } else { &idol };
                let knows = Knowledge {
                    last_step: self.last_step.as_deref(),
                    idol: read.as_deref(),
                    mates: &mates,
                };
                act(&job(turn.member, turn.effort), &turn.learned, &knows)
            })
            .collect();
        self.idol = idol.or_else(|| self.idol.take());
        let arrivals = turns.iter().zip(sent).flat_map(|(turn, sent)| self.on_its_way(turn, sent));
        let arrivals: Vec<Arrival> = arrivals.collect();
        for turn in &turns {
            let cost = self.cost(turn);
            self.members[turn.member].cost += cost;
            self.habits[turn.member].works(turn.effort, cost);
        }
        Ok(arrivals)
    }

    /// Members with an account that is asked, who are there and want to come. Those who were silent before enrol again.
    fn who_comes(&mut self) -> Result<Vec<usize>, SimError> {
        let Some(offer) = self.market.offer() else { return Ok(Vec::new()) };
        let round = u64::from(offer.scope.round.0);
        let mut asked: BTreeMap<usize, u32> = BTreeMap::new();
        for member in offer.cohort.iter().filter_map(|who| self.owner.get(who).copied()) {
            *asked.entry(member).or_default() += 1;
        }
        let now = self.market.now().0;
        let groups: Vec<_> = self.scenario.population.values().collect();
        let (mut there, mut again) = (Vec::new(), Vec::new());
        for member in &self.population.members {
            let group = groups[member.group];
            let online = member.is_online(&group.online, round, now, self.seed);
            let times = asked.get(&member.number).copied().unwrap_or(0);
            let is_asked = times > 0;
            let habits = &mut self.habits[member.number];
            let comes = online && habits.comes(group.elsewhere);
            self.members[member.number].asked += times;
            if comes && habits.is_silent {
                habits.is_silent = false;
                again.push(member.number);
            }
            match (is_asked, comes) {
                (true, true) => there.push(member.number),
                (true, false) => habits.is_silent = true,
                (false, _) => {}
            }
        }
        for member in again {
            for identity in 0..self.population.members[member].strategy.identities() {
                self.market.enrol_again(account(member, identity))?;
            }
        }
        Ok(there)
    }

    /// What the honest member with the most rows learned, if it is there.
    fn idol_of(&self, turns: &[Turn]) -> Option<Vec<f32>> {
        let members = &self.population.members;
        let honest = turns.iter().filter(|turn| members[turn.member].strategy.is_honest());
        let best = honest.max_by_key(|turn| {
            let member = &members[turn.member];
            (member.rows.rows(), std::cmp::Reverse(member.number))
        });
        best.and_then(|turn| turn.learned.deltas.first().cloned())
    }

    fn update_bytes(&self) -> f64 {
        self.model.parameters() as f64 * NUMBER_BYTES + HEADER_BYTES
    }

    /// When what a member sends arrives.
    fn on_its_way(&self, turn: &Turn, sent: Vec<Sent>) -> Vec<Arrival> {
        let member = &self.population.members[turn.member];
        let ms = |seconds: f64| (seconds * 1e3).ceil() as u64;
        let line = self.update_bytes() / member.bytes_per_second;
        let work = turn.learned.steps as f64 / member.steps_per_second;
        // A copier promises when what it copies was promised.
        let copies = matches!(member.strategy, Strategy::Plagiarise { .. });
        let waits = if copies && !self.scenario.task.commit_reveal { self.slowest_ms() } else { 0 };
        let arrival = |sent: Sent| Arrival {
            account: account(member.number, sent.identity),
            rows: sent.rows,
            delta: sent.delta,
            commit_ms: ms(line + work).saturating_add(1).max(waits),
            upload_ms: ms(line).saturating_add(1),
        };
        let asked = |arrival: &Arrival| self.is_asked(arrival.account);
        sent.into_iter().map(arrival).filter(asked).collect()
    }

    fn is_asked(&self, account: Address) -> bool {
        let cohort = self.market.offer().map(|offer| &offer.cohort);
        cohort.is_some_and(|cohort| cohort.binary_search(&account).is_ok())
    }

    /// The last moment for a promise.
    fn slowest_ms(&self) -> u64 {
        (self.scenario.task.train_s * 1e3).floor() as u64
    }

    /// What a turn costs, in florins.
    fn cost(&self, turn: &Turn) -> f64 {
        let member = &self.population.members[turn.member];
        let Some(group) = self.scenario.population.values().nth(member.group) else { return 0.0 };
        let identities = f64::from(member.strategy.identities());
        let megabytes = (1.0 + identities) * self.update_bytes() / MEGABYTE;
        group.cost.per_step * turn.learned.steps as f64 + group.cost.per_megabyte * megabytes
    }
}

/// What the members of a group learned in this round.
fn mates<'a>(turns: &'a [Turn], members: &[Member], group: usize) -> Vec<&'a [f32]> {
    let alike = turns.iter().filter(|turn| members[turn.member].group == group);
    alike.filter_map(|turn| turn.learned.deltas.first().map(Vec::as_slice)).collect()
}
