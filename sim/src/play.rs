//! Playing one seed of a scenario, from the first offer to the last bond that comes back.

mod habits;
mod tokens;
mod turn;
mod waiting;

use std::collections::BTreeMap;

use florin_learning::{Evaluator, ModelSpec, Reference, Training};
use florin_participant::bond_for;
use florin_protocol::{Address, Report, RoundOutcome, TaskSpec};
use florin_work::{Committed, WorkError, check_model, initial_model, model_spec, training};

use crate::market::{Market, MarketError, POOL, RoundDone, Seat, account, fln, florins};
use crate::mechanism::{Judge, Mechanism, Tokens};
use crate::population::{Population, PopulationError};
use crate::scenario::{Group, Scenario};
use crate::strategy::{ActError, triggered};
use habits::Habits;
use tokens::InTokens;

/// Why a seed could not be played.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// There is no population.
    #[error(transparent)]
    Population(#[from] PopulationError),
    /// The market came to a halt.
    #[error(transparent)]
    Market(#[from] MarketError),
    /// The first model could not be made, or a model not be measured.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// Somebody could not train.
    #[error("a member could not train: {0}; lower learning.learning_rate [SIM_TRAINING]")]
    Act(#[from] ActError),
    /// A model could not be measured.
    #[error("a model could not be measured: {0} [SIM_MEASURE]")]
    Measure(#[from] florin_learning::engine::EvalError),
    /// Scores drawn from curves could not be paid.
    #[error("the surrogate came to a halt: {0} [SIM_SURROGATE]")]
    Surrogate(#[from] crate::surrogate::SurrogateError),
}

/// What one member came to.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberOutcome {
    /// Its group, by its place among the names.
    pub group: usize,
    /// Whether it does what the task asks for.
    pub honest: bool,
    /// Its rows.
    pub rows: usize,
    /// Updates of it that were taken, of all its identities.
    pub rounds: u32,
    /// How often one of its identities was asked.
    pub asked: u32,
    /// Of its updates, those that were kept out or set aside.
    pub refused: u32,
    /// Of its updates, those that took something from its bond.
    pub debited: u32,
    /// What it has more than at the beginning, in florins: pay less debits.
    pub earned: f64,
    /// What its work cost it, in florins.
    pub cost: f64,
    /// Sum of its scores, in nats.
    pub score: f64,
    /// Sum of their standard errors, in nats.
    pub error: f64,
    /// What it was paid in each round, less debits.
    pub by_round: Vec<f64>,
}

impl MemberOutcome {
    /// What a member of a group has come to before the first round.
    pub(crate) const fn before(group: usize, honest: bool, rows: usize) -> Self {
        Self {
            group,
            honest,
            rows,
            rounds: 0,
            asked: 0,
            refused: 0,
            debited: 0,
            earned: 0.0,
            cost: 0.0,
            score: 0.0,
            error: 0.0,
            by_round: Vec::new(),
        }
    }

    /// What is left of its earnings after costs, in florins.
    #[must_use]
    pub fn profit(&self) -> f64 {
        self.earned - self.cost
    }
}

/// What one round came to.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundOutcomeRow {
    /// Which, from 1.
    pub round: u32,
    /// When it ended, in virtual milliseconds.
    pub at_ms: u64,
    /// Whether it ended with a settlement, and not with too few updates.
    pub settled: bool,
    /// Members who were there when it opened, and wanted to come.
    pub there: usize,
    /// Accounts asked.
    pub asked: usize,
    /// Updates taken.
    pub updates: usize,
    /// Of them kept out of the model.
    pub excluded: usize,
    /// Of them set aside.
    pub set_aside: usize,
    /// Improvement of the loss on the round's rows, in nats.
    pub improvement: f64,
    /// Paid for data, in florins.
    pub spent: f64,
    /// Share of the test rows that the new model gets right.
    pub accuracy: f64,
}

/// What one seed came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Played {
    /// The seed.
    pub seed: u64,
    /// Names of the groups.
    pub groups: Vec<String>,
    /// Everybody.
    pub members: Vec<MemberOutcome>,
    /// Every round.
    pub rounds: Vec<RoundOutcomeRow>,
    /// Accuracy on the test rows before the first round.
    pub accuracy_before: f64,
    /// Share of marked test rows that the last model takes for what a backdoor teaches.
    pub backdoor: f64,
    /// Florins of the budget that the buyer has back.
    pub returned: f64,
    /// Whether the money added up at the end.
    pub balanced: bool,
}

/// Plays a scenario with one seed, at the speed that it asks for, on so many threads; their number changes nothing.
///
/// # Errors
/// [`SimError`].
pub fn play(scenario: &Scenario, seed: u64, threads: usize) -> Result<Played, SimError> {
    if !scenario.speed.is_real() {
        return crate::surrogate::play(scenario, seed, threads);
    }
    let mut game = Game::among(scenario, seed, Population::draw(scenario, seed)?)?;
    while game.opens()? {
        game.round(threads)?;
        game.look()?;
    }
    game.close()
}

/// A market with its members in the middle of a task.
pub struct Game<'a> {
    scenario: &'a Scenario,
    seed: u64,
    population: Population,
    market: Market,
    seats: Vec<Seat>,
    /// The groups, in the order of their names.
    groups: Vec<&'a Group>,
    /// Which member an account is of, and which identity of it.
    owner: BTreeMap<Address, (usize, u32)>,
    tokens: Option<Tokens>,
    model: ModelSpec,
    how: Training,
    worker: Reference,
    habits: Vec<Habits>,
    members: Vec<MemberOutcome>,
    rounds: Vec<RoundOutcomeRow>,
    accuracy_before: f64,
    /// What the last round did to the model.
    last_step: Option<Vec<f32>>,
    /// What the member with the most rows sent last.
    idol: Option<Vec<f32>>,
    /// Who was there when the open round began.
    there: usize,
    /// How often the task waited for members.
    waits: u64,
    /// What the last round came to.
    report: Option<Report>,
}

impl std::fmt::Debug for Game<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Game").field("market", &self.market).finish_non_exhaustive()
    }
}

impl<'a> Game<'a> {
    /// Opens a scenario's market for a population.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn among(
        scenario: &'a Scenario,
        seed: u64,
        population: Population,
    ) -> Result<Self, SimError> {
        let spec = scenario.task_spec(seed);
        let base = initial_model(&spec.model, seed)?;
        let (seats, owner) = seats(scenario, &spec, &population);
        let tokens = match &scenario.mechanism {
            Mechanism::Tokenised(rules) => {
                let all: Vec<Address> = seats.iter().map(|seat| seat.account).collect();
                Some(Tokens::new(rules.clone(), POOL, &all))
            }
            _ => None,
        };
        let holdout = Committed::new(population.holdout.clone());
        let (model, how) = (model_spec(&spec.model), training(&spec.training));
        let judge =
            Judge { mechanism: scenario.mechanism.clone(), keeps_out: scenario.task.keep_out };
        let start = check_model(&spec, &base);
        let market = Market::open(spec, base, holdout, judge, &seats)?;
        let members = population.members.iter().map(|member| {
            MemberOutcome::before(member.group, member.strategy.is_honest(), member.rows.rows())
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
            how,
            worker: Reference::new(),
            habits: population.members.iter().map(|_| Habits::default()).collect(),
            members: members.collect(),
            population,
            rounds: Vec::new(),
            accuracy_before: 0.0,
            last_step: None,
            idol: None,
            there: 0,
            waits: 0,
            report: None,
        };
        game.accuracy_before = game.accuracy(&start.unwrap_or_default())?;
        Ok(game)
    }

    fn accuracy(&mut self, params: &[f32]) -> Result<f64, SimError> {
        let test = &self.population.test;
        let wide: Vec<f64> = params.iter().map(|value| f64::from(*value)).collect();
        let right = self.worker.correct(&self.model, &wide, test)?;
        Ok(right as f64 / test.rows() as f64)
    }

    /// Plays the round that is open, from everybody's training to its settlement.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn round(&mut self, threads: usize) -> Result<(), SimError> {
        let base = self.market.base()?;
        let arrivals = self.turns(&base, threads)?;
        let sent = if self.tokens.is_some() { arrivals.clone() } else { Vec::new() };
        let done = self.market.round(arrivals, threads)?;
        let in_tokens = self.pay_in_tokens(&base, &sent, &done)?;
        self.note(&done, in_tokens);
        let row = row_of(&done.report, self.there, self.market.now().0, f64::NAN);
        self.rounds.push(row);
        self.last_step = done.step.or_else(|| self.last_step.take());
        self.report = Some(done.report);
        Ok(())
    }

    /// The last round's report.
    pub(crate) const fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// The member that an account is of, and its group.
    pub(crate) fn owner_of(&self, account: Address) -> Option<(usize, usize)> {
        let (member, _) = *self.owner.get(&account)?;
        Some((member, self.members.get(member)?.group))
    }

    /// Loss in nats and share of right rows of the newest model, on rows that nobody in the market sees.
    pub(crate) fn standing(&mut self) -> Result<(f64, f64), SimError> {
        let wide: Vec<f64> = self.market.last_model()?.into_iter().map(f64::from).collect();
        let test = &self.population.test;
        let losses = self.worker.row_losses(&self.model, &wide, test)?;
        let right = self.worker.correct(&self.model, &wide, test)?;
        Ok((florin_learning::mean(&losses), right as f64 / test.rows() as f64))
    }

    /// Measures the model that the last round came to, which the market itself never does.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn look(&mut self) -> Result<(), SimError> {
        let after = self.market.last_model()?;
        let accuracy = self.accuracy(&after)?;
        if let Some(row) = self.rounds.last_mut() {
            row.accuracy = accuracy;
        }
        Ok(())
    }

    /// Writes down what the round's report says of each member.
    fn note(&mut self, done: &RoundDone, in_tokens: InTokens) {
        let report = &done.report;
        let InTokens { mut pay, scores } = in_tokens;
        for (member, score) in self.members.iter_mut().zip(scores) {
            member.score += score;
        }
        for line in &report.lines {
            let Some((at, _)) = self.owner.get(&line.account) else { continue };
            self.members[*at].debited += u32::from(!line.debit.is_zero());
            pay[*at] += florins(line.payout) - florins(line.debit);
            self.members[*at].rounds += 1;
        }
        for score in report.valuation.iter().flat_map(|valuation| &valuation.scores) {
            let Some((at, _)) = self.owner.get(&score.account) else { continue };
            let member = &mut self.members[*at];
            member.score += score.score_nano as f64 / 1e9;
            member.error += score.error_nano as f64 / 1e9;
            let refused = score.excluded || score.treatment.repeats.is_some();
            member.refused += u32::from(refused);
        }
        // Who was late sits out like who was silent, until it enrols again.
        for (who, _) in &report.missing {
            if let Some((at, _)) = self.owner.get(who) {
                self.habits[*at].is_silent = true;
            }
        }
        for ((member, pay), habits) in self.members.iter_mut().zip(pay).zip(&mut self.habits) {
            member.by_round.push(pay);
            habits.learn(pay);
        }
    }

    /// Ends the task: everything final is claimed, and bonds come back.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn close(mut self) -> Result<Played, SimError> {
        self.market.settle(&self.seats)?;
        for seat in &self.seats {
            let Some((at, _)) = self.owner.get(&seat.account) else { continue };
            let gained = florins(self.market.worth(seat.account)) - florins(seat.begins_with());
            self.members[*at].earned += gained;
        }
        let marked = triggered(&self.population.test).map_err(ActError::from)?;
        let last = self.market.last_model()?;
        let wide: Vec<f64> = last.iter().map(|value| f64::from(*value)).collect();
        let hits = self.worker.correct(&self.model, &wide, &marked)?;
        Ok(Played {
            seed: self.seed,
            groups: self.population.groups,
            members: self.members,
            rounds: self.rounds,
            accuracy_before: self.accuracy_before,
            backdoor: hits as f64 / marked.rows().max(1) as f64,
            returned: self.market.returned(),
            balanced: self.market.is_balanced(),
        })
    }
}

/// An account for each identity, with what a participant's program bonds for its rows: once, before the first round, and
/// nothing more after a debit.
fn seats(
    scenario: &Scenario,
    spec: &TaskSpec,
    population: &Population,
) -> (Vec<Seat>, BTreeMap<Address, (usize, u32)>) {
    let (mut seats, mut owner) = (Vec::new(), BTreeMap::new());
    let extra = match &scenario.mechanism {
        Mechanism::Tokenised(rules) => fln(rules.endowment as f64),
        _ => fln(0.0),
    };
    for member in &population.members {
        for identity in 0..member.strategy.identities() {
            let account = account(member.number, identity);
            let (_, covered) = member.strategy.rows(member.rows.rows() as u64, identity);
            let bond = bond_for(spec, covered, None);
            seats.push(Seat { account, bond, extra });
            owner.insert(account, (member.number, identity));
        }
    }
    (seats, owner)
}

fn row_of(report: &Report, there: usize, at_ms: u64, accuracy: f64) -> RoundOutcomeRow {
    let scores = || report.valuation.iter().flat_map(|valuation| &valuation.scores);
    let improvement = report.valuation.as_ref().map_or(0, |valuation| valuation.total_nano);
    let settled = report.outcome == RoundOutcome::Settled;
    RoundOutcomeRow {
        round: report.scope.round.0,
        at_ms,
        settled,
        there,
        asked: report.entries.len() + report.missing.len(),
        updates: report.entries.len(),
        excluded: scores().filter(|score| score.excluded).count(),
        set_aside: scores().filter(|score| score.treatment.repeats.is_some()).count(),
        improvement: if settled { improvement as f64 / 1e9 } else { 0.0 },
        spent: report.lines.iter().map(|line| florins(line.payout)).sum(),
        accuracy,
    }
}
