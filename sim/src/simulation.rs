//! Simulates one seed of a scenario, from the first offer to the last returned bond.

mod adaptation;
mod earlier_task;
mod graph_task;
mod late;
mod member_work;
mod selection;
mod token_settlement;
mod waiting;

use std::collections::BTreeMap;

use florin_learning::{Evaluator, ModelSpec, Reference};
use florin_participant::required_bond;
use florin_protocol::{Address, Report, TaskSpec};
use florin_work::{CommittedHoldout, decode_model, encode_parameters, initial_model, task_model};

use crate::error::SimError;
use crate::market::{
    Arrival, POOL, ParticipantAccount, RoundResult, RoundTimeline, SimulatedMarket, account,
    amount_to_florins, florins_to_amount,
};
use crate::mechanism::{Mechanism, RoundScorer, TokenMechanism};
use crate::member_updates::{CopyTargets, MemberTrainingError, PublicTask, triggered_rows};
use crate::outcome::{MemberOutcome, RoundOutcomeRow, SimulationOutcome};
use crate::population::Population;
use crate::scenario::{EarlierTask, Group, Scenario};
use crate::selectors::SelectorState;
use crate::strategy::ROUNDS_BACK_MAX;
use adaptation::Adaptation;
pub use graph_task::GraphTask;
use late::LateArrival;
use selection::quoted_ms;
use token_settlement::TokenPayments;

/// A running simulation: a market and its members in the middle of a task.
pub struct Simulation<'a> {
    scenario: &'a Scenario,
    seed: u64,
    population: Population,
    market: SimulatedMarket,
    seats: Vec<ParticipantAccount>,
    /// The groups, in the order of their names.
    groups: Vec<&'a Group>,
    /// The member and the identity to which an account belongs.
    owner: BTreeMap<Address, (usize, u32)>,
    tokens: Option<TokenMechanism>,
    model: ModelSpec,
    worker: Reference,
    habits: Vec<Adaptation>,
    members: Vec<MemberOutcome>,
    rounds: Vec<RoundOutcomeRow>,
    timelines: Vec<RoundTimeline>,
    accuracy_before: f64,
    /// The public steps, newest first: the changes of the model in the rounds that changed it.
    steps: Vec<Vec<f32>>,
    /// The updates to copy of earlier rounds, newest first.
    copy_targets: Vec<CopyTargets>,
    /// Indices of the holdout rows that the rounds so far disclosed.
    disclosed: Vec<usize>,
    /// The first update of each member that repeats it.
    first_updates: BTreeMap<usize, Vec<f32>>,
    /// The public data of the earlier task, if there was one.
    earlier_task: Option<PublicTask>,
    /// Number of members online at the start of the open round.
    online: usize,
    /// Number of accounts in the open round's cohort whose devices hold no step.
    too_small: usize,
    /// How often the task waited for members.
    waits: u64,
    /// Updates that members trained so far, also those that arrived too late.
    trained: usize,
    /// The trainings that go on after their round.
    late: BTreeMap<Address, LateArrival>,
    /// The members' work up to the end of the last round.
    work: WorkDone,
    /// The selector in place of the market's, if the scenario names one.
    selector: Option<SelectorState>,
    /// Number of rounds in which the selector had too few members, so that the market's cohort was
    /// asked.
    market_cohorts: u32,
    /// The report of the last round.
    report: Option<Report>,
}

/// The work of all members so far.
#[derive(Clone, Copy, Debug, Default)]
struct WorkDone {
    /// Milliseconds that members were at work.
    busy_ms: u64,
    /// Milliseconds that their devices computed, of all devices together.
    computed_ms: f64,
}

impl std::fmt::Debug for Simulation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Game").field("market", &self.market).finish_non_exhaustive()
    }
}

fn selector_state(scenario: &Scenario) -> Option<SelectorState> {
    scenario.task.selector.map(|selector| SelectorState::new(selector, scenario.rounds))
}

impl<'a> Simulation<'a> {
    /// Opens the market of `scenario` for `population`.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn new(
        scenario: &'a Scenario,
        seed: u64,
        population: Population,
    ) -> Result<Self, SimError> {
        Self::of_model(scenario, seed, population, None)
    }

    /// The same with a graph in place of the scenario's network.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn with_graph(
        scenario: &'a Scenario,
        seed: u64,
        population: Population,
        graph: &GraphTask,
    ) -> Result<Self, SimError> {
        Self::of_model(scenario, seed, population, Some(graph))
    }

    fn of_model(
        scenario: &'a Scenario,
        seed: u64,
        population: Population,
        graph: Option<&GraphTask>,
    ) -> Result<Self, SimError> {
        let mut spec = scenario.task_spec(seed);
        if let Some(graph) = graph {
            graph.declare(&mut spec);
        }
        let earlier_task = earlier_task::play(scenario, seed)?;
        let base = match (scenario.task.earlier_task, &earlier_task, graph) {
            (Some(EarlierTask::Continued), Some(earlier), _) => {
                encode_parameters(&spec, &earlier.last_model)
            }
            (_, _, Some(graph)) => graph.initial(&spec),
            _ => initial_model(&spec.model, seed)?,
        };
        let graph = graph.map_or(Ok(None), |graph| graph.load(&spec))?;
        let model = task_model(&spec, graph.as_ref());
        let (seats, owner) = create_accounts(scenario, &spec, &model, &population);
        let tokens = token_mechanism(scenario, &seats);
        let holdout = CommittedHoldout::new(population.holdout.clone());
        let judge = RoundScorer {
            mechanism: scenario.mechanism.clone(),
            excludes_harmful: scenario.task.exclude_harmful,
            stale_weights: scenario.task.stale_weights,
        };
        let start = decode_model(&spec, &base);
        let market = SimulatedMarket::open(spec, base, holdout, judge, &seats)?.with_graph(graph);
        let members = population.members.iter().map(|member| {
            let honest = member.strategy.is_honest();
            let before = MemberOutcome::initial(member.group, honest, member.rows.rows());
            MemberOutcome { devices: member.devices, ..before }
        });
        let mut game = Self {
            scenario,
            seed,
            market,
            seats,
            groups: scenario.population.values().collect(),
            owner,
            tokens,
            model,
            worker: Reference::new(),
            habits: population.members.iter().map(|_| Adaptation::default()).collect(),
            members: members.collect(),
            population,
            rounds: Vec::new(),
            timelines: Vec::new(),
            accuracy_before: 0.0,
            steps: Vec::new(),
            copy_targets: Vec::new(),
            disclosed: Vec::new(),
            first_updates: BTreeMap::new(),
            earlier_task,
            online: 0,
            too_small: 0,
            waits: 0,
            trained: 0,
            late: BTreeMap::new(),
            work: WorkDone::default(),
            selector: selector_state(scenario),
            market_cohorts: 0,
            report: None,
        };
        game.accuracy_before = game.accuracy(&start.unwrap_or_default())?;
        Ok(game)
    }

    fn accuracy(&mut self, params: &[f32]) -> Result<f64, SimError> {
        let test = &self.population.test;
        let wide: Vec<f64> = params.iter().map(|value| f64::from(*value)).collect();
        let right = self.worker.correct_predictions(&self.model, &wide, test)?;
        Ok(right as f64 / test.rows() as f64)
    }

    /// Simulates the open round, from the members' training to its settlement.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn run_round(&mut self, threads: usize) -> Result<(), SimError> {
        self.replace_cohort();
        let base = self.market.base_model()?;
        let offer = self.market.offer().map(|offer| (offer.opened, offer.base_model));
        let begun = offer.unwrap_or_default();
        let opened = begun.0.0;
        let mut arrivals = self.simulate_members(&base, threads)?;
        self.trained += arrivals.len();
        arrivals.extend(self.take_late());
        let works = |arrival: &Arrival| (arrival.account, arrival.commit_ms);
        let works: Vec<(Address, u64)> = arrivals.iter().map(works).collect();
        // Only token pay and late updates read them afterwards.
        let is_read = self.tokens.is_some() || self.scenario.task.staleness.is_some();
        let sent = if is_read { arrivals.clone() } else { Vec::new() };
        let senders: Vec<Address> = arrivals.iter().map(|arrival| arrival.account).collect();
        let done = self.market.run_round(arrivals, threads)?;
        let lasted = self.market.now().0.saturating_sub(opened);
        self.record_work(works, lasted);
        self.show_results(&base, &done.report)?;
        let in_tokens = self.settle_tokens(&base, &sent, &done)?;
        self.remember_late(sent, begun, &done.report);
        self.record_round(&done, in_tokens);
        let late = self.record_late(&senders, &done);
        let at_ms = self.market.now().0;
        self.rounds.push(RoundOutcomeRow {
            late,
            too_small: self.too_small,
            duration_ms: at_ms.saturating_sub(opened),
            ..round_row(&done.report, self.online, at_ms, f64::NAN)
        });
        self.disclosed.extend(done.report.holdout.rows.iter().map(|row| *row as usize));
        push_newest(&mut self.steps, done.step);
        self.timelines.push(done.timeline);
        self.report = Some(done.report);
        Ok(())
    }

    /// Updates that members trained so far, also those that arrived too late.
    #[must_use]
    pub const fn trained(&self) -> usize {
        self.trained
    }

    /// Milliseconds that members were at work so far: from an offer to a commit, or to the end of a
    /// round.
    #[must_use]
    pub const fn busy_ms(&self) -> u64 {
        self.work.busy_ms
    }

    /// Milliseconds that the devices of members computed so far, of all devices together. A member
    /// with a machine computes all the time that it is at work.
    #[must_use]
    pub const fn computed_ms(&self) -> f64 {
        self.work.computed_ms
    }

    /// Records the work of accounts in a round that lasted `lasted` milliseconds: each until its
    /// commit.
    fn record_work(&mut self, works: Vec<(Address, u64)>, lasted: u64) {
        for (account, commit_ms) in works {
            let Some((at, _)) = self.owner.get(&account) else { continue };
            let ms = commit_ms.min(lasted);
            let devices = self.population.members[*at].devices;
            self.work.busy_ms += ms;
            self.work.computed_ms += ms as f64 * devices.map_or(1.0, |round| round.computing);
        }
    }

    /// The outcomes of the rounds so far.
    #[must_use]
    pub fn rounds(&self) -> &[RoundOutcomeRow] {
        &self.rounds
    }

    /// The report of the last round.
    #[must_use]
    pub const fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// The member that owns an account, and its group.
    #[must_use]
    pub fn owner_of(&self, account: Address) -> Option<(usize, usize)> {
        let (member, _) = *self.owner.get(&account)?;
        Some((member, self.members.get(member)?.group))
    }

    /// Loss in nats and accuracy of the newest model on the test rows, which no participant in the
    /// market sees.
    pub(crate) fn test_metrics(&mut self) -> Result<(f64, f64), SimError> {
        let wide: Vec<f64> = self.market.newest_model()?.into_iter().map(f64::from).collect();
        let test = &self.population.test;
        let losses = self.worker.row_losses(&self.model, &wide, test)?;
        let right = self.worker.correct_predictions(&self.model, &wide, test)?;
        Ok((florin_learning::mean(&losses), right as f64 / test.rows() as f64))
    }

    /// Measures the test accuracy of the model after the last round. The market itself never does
    /// this.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn measure_accuracy(&mut self) -> Result<(), SimError> {
        let after = self.market.newest_model()?;
        let accuracy = self.accuracy(&after)?;
        if let Some(row) = self.rounds.last_mut() {
            row.accuracy = accuracy;
        }
        Ok(())
    }

    /// Records the results of the round for each member from the round's report.
    fn record_round(&mut self, done: &RoundResult, in_tokens: TokenPayments) {
        let report = &done.report;
        let TokenPayments { mut pay, scores } = in_tokens;
        for (member, score) in self.members.iter_mut().zip(scores) {
            member.score += score;
        }
        for line in &report.lines {
            let Some((at, _)) = self.owner.get(&line.account) else { continue };
            self.members[*at].debited += u32::from(!line.debit.is_zero());
            pay[*at] += amount_to_florins(line.payout) - amount_to_florins(line.debit);
            self.members[*at].rounds += 1;
        }
        for score in report.valuation.iter().flat_map(|valuation| &valuation.scores) {
            let Some((at, _)) = self.owner.get(&score.account) else { continue };
            let member = &mut self.members[*at];
            member.score += score.score_nano as f64 / 1e9;
            member.error += score.error_nano as f64 / 1e9;
            let refused = score.excluded || score.preprocessing.duplicate_of.is_some();
            member.rejected += u32::from(refused);
        }
        // A member that was late sits out, like a silent one, until it enrols again.
        for (who, _) in &report.missing {
            if let Some((at, _)) = self.owner.get(who) {
                self.habits[*at].must_re_enrol = true;
            }
        }
        for ((member, pay), habits) in self.members.iter_mut().zip(pay).zip(&mut self.habits) {
            member.by_round.push(pay);
            habits.record_pay(pay);
        }
    }

    /// Ends the task: claims everything final and returns the bonds.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn finish(mut self) -> Result<SimulationOutcome, SimError> {
        self.market.finish_task(&self.seats)?;
        for seat in &self.seats {
            let Some((at, _)) = self.owner.get(&seat.account) else { continue };
            let gained = amount_to_florins(self.market.total_balance(seat.account))
                - amount_to_florins(seat.initial_balance());
            self.members[*at].earned += gained;
        }
        let marked = triggered_rows(&self.population.test).map_err(MemberTrainingError::from)?;
        let last = self.market.newest_model()?;
        let wide: Vec<f64> = last.iter().map(|value| f64::from(*value)).collect();
        let hits = self.worker.correct_predictions(&self.model, &wide, &marked)?;
        Ok(SimulationOutcome {
            seed: self.seed,
            groups: self.population.groups,
            members: self.members,
            rounds: self.rounds,
            timelines: self.timelines,
            accuracy_before: self.accuracy_before,
            backdoor: hits as f64 / marked.rows().max(1) as f64,
            returned: self.market.refunded_budget(),
            balanced: self.market.is_balanced(),
            market_cohorts: self.market_cohorts,
        })
    }
}

/// The token mechanism of the scenario, if it has one.
fn token_mechanism(scenario: &Scenario, seats: &[ParticipantAccount]) -> Option<TokenMechanism> {
    let Mechanism::Tokenised(rules) = &scenario.mechanism else { return None };
    let all: Vec<Address> = seats.iter().map(|seat| seat.account).collect();
    Some(TokenMechanism::new(rules.clone(), POOL, &all))
}

/// Puts the newest item first, and drops those that no strategy reads.
fn push_newest<T>(items: &mut Vec<T>, newest: Option<T>) {
    if let Some(newest) = newest {
        items.insert(0, newest);
        items.truncate(ROUNDS_BACK_MAX as usize + 1);
    }
}

/// Creates one account per identity. Its bond is the amount that the participant program bonds for
/// its rows: once, before the first round, and without a top-up after a debit.
fn create_accounts(
    scenario: &Scenario,
    spec: &TaskSpec,
    model: &ModelSpec,
    population: &Population,
) -> (Vec<ParticipantAccount>, BTreeMap<Address, (usize, u32)>) {
    let (mut seats, mut owner) = (Vec::new(), BTreeMap::new());
    let groups: Vec<&Group> = scenario.population.values().collect();
    let bytes = member_work::update_bytes(scenario, model);
    let extra = match &scenario.mechanism {
        Mechanism::Tokenised(rules) => florins_to_amount(rules.endowment as f64),
        _ => florins_to_amount(0.0),
    };
    for member in &population.members {
        for identity in 0..member.strategy.identities() {
            let account = account(member.number, identity);
            let (_, covered) =
                member.strategy.declared_and_bonded_rows(member.rows.rows() as u64, identity);
            let bond = required_bond(spec, covered, None);
            let group = groups[member.group];
            let quote_ms = quoted_ms(scenario, group, member, bytes);
            seats.push(ParticipantAccount { account, bond, extra, quote_ms });
            owner.insert(account, (member.number, identity));
        }
    }
    (seats, owner)
}

fn round_row(report: &Report, there: usize, at_ms: u64, accuracy: f64) -> RoundOutcomeRow {
    let scores = || report.valuation.iter().flat_map(|valuation| &valuation.scores);
    let improvement = report.valuation.as_ref().map_or(0, |valuation| valuation.total_nano);
    let settled = report.has_settlement();
    RoundOutcomeRow {
        round: report.scope.round.0,
        at_ms,
        settled,
        online: there,
        selected: report.entries.len() + report.missing.len(),
        updates: report.entries.len(),
        excluded: scores().filter(|score| score.excluded).count(),
        near_duplicates: scores()
            .filter(|score| score.preprocessing.duplicate_of.is_some())
            .count(),
        improvement: if settled { improvement as f64 / 1e9 } else { 0.0 },
        spent: amount_to_florins(report.data_paid().unwrap_or_default()),
        accuracy,
        late: 0,
        too_small: 0,
        duration_ms: 0,
    }
}
