//! Simulates with sampled scores. Everything after the score is real: exclusion, pay, debits, and
//! the rows that a bond still covers.

use std::collections::BTreeMap;

use florin_contribution::{is_negative_beyond_error, to_nano};
use florin_learning::parallel_map;
use florin_protocol::{
    AccountTotals, Amount, Micro, PayInputs, PayLine, PayTotals, Preprocessing, RoundBudget,
    TaskSpec, UpdateScore, ValuedRound, pay_round,
};

use super::Fit;
use super::learning_curve::LOSS_MIN;
use super::members::{SurrogateMember, draw_members};
use super::score_model::{RoundConditions, SampledUpdate, UpdateNoise};
use crate::error::SurrogateError;
use crate::market::{account, amount_to_florins};
use crate::outcome::{MemberOutcome, RoundOutcomeRow, SimulationOutcome};
use crate::random::{normal, stream, uniform, uniform_below};
use crate::scenario::{Group, Scenario};

/// Number of members per random stream: the numbers that a member draws depend on its index and not
/// on the threads.
const CHUNK: usize = 4_096;

/// A surrogate simulation between two rounds.
pub(crate) struct SurrogateSimulation<'a> {
    scenario: &'a Scenario,
    fit: &'a Fit,
    spec: TaskSpec,
    seed: u64,
    threads: usize,
    groups: Vec<&'a Group>,
    population: Vec<SurrogateMember>,
    standings: Vec<AccountTotals>,
    improvement_nano: u64,
    score_pay: Amount,
    bonds: Vec<Amount>,
    paid: Amount,
    loss: f64,
    members: Vec<MemberOutcome>,
    rounds: Vec<RoundOutcomeRow>,
    is_balanced: bool,
    /// The losses before the first round and after each round.
    pub(super) losses: Vec<f64>,
}

/// An update that a member sends in a round, before its weight in the aggregate is known.
#[derive(Clone, Copy)]
struct PendingUpdate {
    member: usize,
    rows: u64,
    drawn: SampledUpdate,
}

/// The updates of a chunk of a round's cohort.
#[derive(Default)]
struct CohortUpdates {
    sent: Vec<PendingUpdate>,
    near_duplicates: Vec<usize>,
}

impl<'a> SurrogateSimulation<'a> {
    pub(crate) fn new(scenario: &'a Scenario, fit: &'a Fit, seed: u64, threads: usize) -> Self {
        let population = draw_members(scenario, seed, threads);
        let groups: Vec<&Group> = scenario.population.values().collect();
        let spec = scenario.task_spec(seed);
        let outcome = |person: &SurrogateMember| {
            let group = person.group as usize;
            let honest = groups.get(group).is_some_and(|g| g.strategy.is_honest());
            let before = MemberOutcome::initial(group, honest, person.rows as usize);
            MemberOutcome { by_round: vec![0.0; 2], devices: person.devices, ..before }
        };
        Self {
            members: population.iter().map(outcome).collect(),
            standings: vec![AccountTotals::default(); population.len()],
            improvement_nano: 0,
            score_pay: Amount::ZERO,
            bonds: population.iter().map(|person| person.bond).collect(),
            scenario,
            fit,
            spec,
            seed,
            threads,
            groups,
            population,
            paid: Amount::ZERO,
            loss: fit.loss_before,
            rounds: Vec::new(),
            is_balanced: true,
            losses: vec![fit.loss_before],
        }
    }

    pub(crate) fn run(mut self) -> Result<(SimulationOutcome, Vec<f64>), SurrogateError> {
        for round in 1..=self.scenario.rounds {
            self.run_round(round)?;
        }
        let losses = std::mem::take(&mut self.losses);
        Ok((self.finish()?, losses))
    }

    fn run_round(&mut self, round: u32) -> Result<(), SurrogateError> {
        let (there, cohort) = self.cohort(round);
        let came = self.sample_updates(&cohort, round);
        let mut row = RoundOutcomeRow {
            round,
            at_ms: self.at_ms(round),
            settled: false,
            online: there,
            selected: cohort.len(),
            updates: came.iter().map(|chunk| chunk.sent.len() + chunk.near_duplicates.len()).sum(),
            excluded: 0,
            near_duplicates: came.iter().map(|chunk| chunk.near_duplicates.len()).sum(),
            improvement: 0.0,
            spent: 0.0,
            accuracy: self.fit.curve.accuracy(self.loss),
            late: cohort.iter().filter(|member| !self.population[**member].is_in_time).count(),
            too_small: 0,
            duration_ms: self.at_ms(2),
        };
        for member in &cohort {
            let person = &self.population[*member];
            let is_in_time = person.is_in_time;
            let cost =
                self.groups.get(person.group as usize).map_or(0.0, |group| person.cost(group));
            // The member works even if its update is not accepted.
            let member = &mut self.members[*member];
            (member.selected, member.cost) = (member.selected + 1, member.cost + cost);
            member.late += u32::from(!is_in_time);
        }
        for member in came.iter().flat_map(|chunk| &chunk.near_duplicates) {
            let member = &mut self.members[*member];
            (member.rounds, member.rejected) = (member.rounds + 1, member.rejected + 1);
        }
        let sent: Vec<PendingUpdate> = came.into_iter().flat_map(|chunk| chunk.sent).collect();
        // As in the engine, updates that are rejected as near-duplicates count towards the minimum.
        if self.spec.has_quorum(row.updates) {
            self.settle(&mut row, &sent)?;
        }
        self.losses.push(self.loss);
        self.rounds.push(row);
        Ok(())
    }

    /// Computes the scores, exclusions and payments of a round.
    fn settle(
        &mut self,
        row: &mut RoundOutcomeRow,
        sent: &[PendingUpdate],
    ) -> Result<(), SurrogateError> {
        let scores = self.score_round(sent)?;
        let included = || sent.iter().zip(&scores).filter(|(_, score)| !score.excluded);
        let improvement: i64 = included().map(|(_, score)| score.score_nano).sum();
        row.excluded = scores.len() - included().count();
        (row.settled, row.improvement) = (true, improvement as f64 / 1e9);
        let rows: u64 = included().map(|(sent, _)| sent.rows).sum();
        let work: f64 = included().map(|(sent, _)| sent.rows as f64 * sent.drawn.work).sum();
        if matches!(ValuedRound::from_scores(&scores, improvement), ValuedRound::Improved(..)) {
            self.loss = (self.loss - work / rows.max(1) as f64).max(LOSS_MIN.min(self.loss));
        }
        row.accuracy = self.fit.curve.accuracy(self.loss);
        let spent = self.pay(row.round, sent, &scores, improvement)?;
        row.spent = amount_to_florins(spent);
        Ok(())
    }

    /// Applies the pay rule to the senders of updates; no other account's totals can change.
    fn pay(
        &mut self,
        round: u32,
        sent: &[PendingUpdate],
        scores: &[UpdateScore],
        improvement: i64,
    ) -> Result<Amount, SurrogateError> {
        let left = self.spec.budget.data.minus(self.paid)?;
        let rounds_left = self.spec.rounds.count.saturating_sub(round.saturating_sub(1));
        // Like the protocol, divides the remaining budget by the remaining rounds, rounded down.
        let pool = left.mul_div_down(1, u128::from(rounds_left.max(1)))?;
        let floor = self.spec.round_floor()?.min(pool);
        let limits = RoundBudget { pool, floor, infrastructure: Amount::ZERO };
        let is_last = round >= self.spec.rounds.count;
        let bond = |sent: &PendingUpdate| (account(sent.member, 0), self.bonds[sent.member]);
        let bonds: BTreeMap<_, _> = sent.iter().map(bond).collect();
        let before = self.totals(sent, is_last);
        let paid = pay_round(&PayInputs {
            budget: &self.spec.budget,
            limits,
            is_last,
            before: &before,
            round: ValuedRound::from_scores(scores, improvement),
            bonds: &bonds,
            work: &[],
        })?;
        self.improvement_nano = paid.totals.improvement_nano;
        self.score_pay = paid.totals.score_pay;
        let members: Vec<usize> = match is_last {
            true => (0..self.standings.len()).collect(),
            false => sent.iter().map(|sent| sent.member).collect(),
        };
        for member in members {
            if let Some(totals) = paid.totals.accounts.get(&account(member, 0)) {
                self.standings[member] = *totals;
            }
        }
        let mut sum = Amount::ZERO;
        let half = usize::from(round > self.scenario.rounds / 2);
        for ((sent, score), line) in sent.iter().zip(scores).zip(&paid.lines) {
            sum = sum.plus(line.payout)?;
            self.bonds[sent.member] = self.bonds[sent.member].minus(line.debit)?;
            self.record_update(sent, score, line, half);
        }
        sum = sum.plus(Amount::total(paid.final_lines.iter().map(|line| line.payout))?)?;
        self.is_balanced &= sum == paid.data_spent && sum <= limits.pool;
        self.paid = self.paid.plus(sum)?;
        Ok(sum)
    }

    /// The totals before a round: of the senders, and in the last round of all members.
    fn totals(&self, sent: &[PendingUpdate], is_last: bool) -> PayTotals {
        let own = |member: usize| (account(member, 0), self.standings[member]);
        let accounts = match is_last {
            true => (0..self.standings.len()).map(own).collect(),
            false => sent.iter().map(|sent| own(sent.member)).collect(),
        };
        let (improvement_nano, score_pay) = (self.improvement_nano, self.score_pay);
        PayTotals { accounts, improvement_nano, score_pay }
    }

    fn record_update(
        &mut self,
        sent: &PendingUpdate,
        score: &UpdateScore,
        line: &PayLine,
        half: usize,
    ) {
        let member = &mut self.members[sent.member];
        member.rounds += 1;
        member.rejected += u32::from(score.excluded);
        member.debited += u32::from(!line.debit.is_zero());
        member.score += score.score_nano as f64 / 1e9;
        member.error += score.error_nano as f64 / 1e9;
        if let Some(sum) = member.by_round.get_mut(half) {
            *sum += amount_to_florins(line.payout) - amount_to_florins(line.debit);
        }
    }

    /// The scores of a round: updates with a significantly negative score are excluded, and the
    /// rest is valued again without them.
    fn score_round(&self, sent: &[PendingUpdate]) -> Result<Vec<UpdateScore>, SurrogateError> {
        let confidence_z = self.spec.budget.confidence_z.0;
        let mut excluded = vec![false; sent.len()];
        let mut scores = self.value_updates(sent, &excluded)?;
        for (out, score) in excluded.iter_mut().zip(&scores) {
            *out = self.scenario.task.exclude_harmful
                && is_negative_beyond_error(score.score_nano, score.error_nano, confidence_z);
        }
        if excluded.contains(&true) {
            let again = self.value_updates(sent, &excluded)?;
            for ((score, again), out) in scores.iter_mut().zip(again).zip(&excluded) {
                if *out { score.excluded = true } else { *score = again }
            }
        }
        Ok(scores)
    }

    fn value_updates(
        &self,
        sent: &[PendingUpdate],
        out: &[bool],
    ) -> Result<Vec<UpdateScore>, SurrogateError> {
        let inside = sent.iter().zip(out).filter(|(_, out)| !**out);
        let rows: u64 = inside.map(|(sent, _)| sent.rows).sum();
        let score = |sent: &PendingUpdate| {
            let part = sent.rows as f64 / rows.max(1) as f64;
            Ok(UpdateScore {
                account: account(sent.member, 0),
                score_nano: to_nano(part * sent.drawn.score)?,
                error_nano: to_nano(part * sent.drawn.error)?.unsigned_abs(),
                excluded: false,
                preprocessing: Preprocessing {
                    norm_factor: Micro::ONE,
                    duplicate_of: None,
                    weight: sent.rows,
                },
            })
        };
        sent.iter().map(score).collect()
    }

    /// Number of online members, and a uniform sample of them as cohort. Members whose bond no
    /// longer covers the minimum are not eligible.
    fn cohort(&self, round: u32) -> (usize, Vec<usize>) {
        let (round_seed, at_ms) = (u64::from(round), self.at_ms(round));
        let starts: Vec<usize> = (0..self.population.len()).step_by(CHUNK).collect();
        let there = parallel_map(self.threads, starts, |start| {
            let rng = &mut stream(self.seed, "surrogate online", [start as u64, round_seed]);
            let chunk = start..self.population.len().min(start + CHUNK);
            let comes = |member: &usize| {
                let person = &self.population[*member];
                let share = self.groups.get(person.group as usize).map_or(0.0, |group| {
                    person.online_probability(&group.online, round_seed, at_ms)
                });
                let chance = if share >= 1.0 { 0.0 } else { uniform(rng) };
                chance < share && self.bonds[*member] >= self.spec.budget.bond_min
            };
            chunk.filter(comes).collect::<Vec<usize>>()
        });
        let mut there: Vec<usize> = there.concat();
        let all = there.len();
        let wanted = (self.scenario.task.cohort as usize).min(there.len());
        let rng = &mut stream(self.seed, "surrogate cohort", [round_seed, 0]);
        for at in 0..wanted {
            let other = at + uniform_below(rng, (there.len() - at) as u64) as usize;
            there.swap(at, other);
        }
        there.truncate(wanted);
        there.sort_unstable();
        (all, there)
    }

    /// Samples the updates of the cohort.
    fn sample_updates(&self, cohort: &[usize], round: u32) -> Vec<CohortUpdates> {
        let gain = self.fit.curve.loss_decrease(self.loss, self.expected_updates(cohort));
        let luck = normal(&mut stream(self.seed, "surrogate luck", [u64::from(round), 0]));
        let stage =
            RoundConditions { gain, sampling_noise: luck, mean_offset: self.mean_offset(cohort) };
        let chunks: Vec<(usize, &[usize])> = cohort.chunks(CHUNK).enumerate().collect();
        parallel_map(self.threads, chunks, |(chunk, members)| {
            let at = [chunk as u64, u64::from(round)];
            let rng = &mut stream(self.seed, "surrogate scores", at);
            let mut came = CohortUpdates::default();
            for member in members {
                let person = &self.population[*member];
                let Some(group) = self.fit.groups.get(person.group as usize) else { continue };
                let (aside, idle) =
                    (uniform(rng) < group.near_duplicate_share, uniform(rng) < group.idle_share);
                let z = UpdateNoise { work: normal(rng), rows: uniform(rng), error: normal(rng) };
                if !person.is_in_time {
                    continue;
                }
                if aside {
                    came.near_duplicates.push(*member);
                    continue;
                }
                let rows = self.spec.rows_counted(person.declared, self.bonds[*member]);
                let drawn = match idle {
                    true => SampledUpdate::default(),
                    false => {
                        group.sample(rows as f64, person.random_effects.map(f64::from), stage, z)
                    }
                };
                came.sent.push(PendingUpdate { member: *member, rows, drawn });
            }
            came
        })
    }

    /// Expected number of updates in the aggregate: those that arrive in time, minus the expected
    /// near-duplicates.
    fn expected_updates(&self, cohort: &[usize]) -> f64 {
        let in_time =
            cohort.iter().map(|member| &self.population[*member]).filter(|p| p.is_in_time);
        let fits = in_time.filter_map(|person| self.fit.groups.get(person.group as usize));
        fits.map(|group| 1.0 - group.near_duplicate_share).sum()
    }

    /// The mean of `a₁ ζ₁` over the rows of the senders: their late contributions are relative to
    /// each other.
    fn mean_offset(&self, cohort: &[usize]) -> f64 {
        let (mut sum, mut rows) = (0.0, 0.0);
        for member in cohort {
            let person = &self.population[*member];
            if let Some(group) = self.fit.groups.get(person.group as usize)
                && person.is_in_time
            {
                let own = f64::from(person.rows);
                (sum, rows) = (
                    sum + own * group.variance.member_std[1] * f64::from(person.random_effects[1]),
                    rows + own,
                );
            }
        }
        if rows > 0.0 { sum / rows } else { 0.0 }
    }

    /// Virtual time: every round takes as long as its deadlines allow.
    fn at_ms(&self, round: u32) -> u64 {
        let rules = &self.spec.rounds;
        rules.train_ms.saturating_add(rules.reveal_ms).saturating_mul(u64::from(round - 1))
    }

    fn finish(mut self) -> Result<SimulationOutcome, SurrogateError> {
        let mut paid = Amount::ZERO;
        for (member, standing) in self.members.iter_mut().zip(&self.standings) {
            paid = paid.plus(standing.data)?;
            member.earned = amount_to_florins(standing.data) - amount_to_florins(standing.debited);
        }
        for ((bond, standing), person) in
            self.bonds.iter().zip(&self.standings).zip(&self.population)
        {
            self.is_balanced &= bond.plus(standing.debited)? == person.bond;
        }
        Ok(SimulationOutcome {
            seed: self.seed,
            groups: self.scenario.population.keys().cloned().collect(),
            accuracy_before: self.fit.curve.accuracy(self.fit.loss_before),
            backdoor: f64::NAN,
            returned: amount_to_florins(self.spec.budget.data.minus(self.paid)?),
            balanced: self.is_balanced && paid == self.paid && paid <= self.spec.budget.data,
            members: self.members,
            rounds: self.rounds,
            timelines: Vec::new(),
            market_cohorts: 0,
        })
    }
}
