//! Playing one seed of a scenario, from the first offer to the last bond that comes back.

mod habits;
mod turn;

use std::collections::BTreeMap;

use florin_learning::{Evaluator, ModelSpec, Reference, Training};
use florin_protocol::{Address, Report, RoundOutcome};
use florin_work::{Committed, WorkError, check_model, initial_model, model_spec, training};

use crate::market::{Arrival, Market, MarketError, POOL, RoundDone, Seat, account, fln, florins};
use crate::mechanism::{Mechanism, RoundSeen, Tokens};
use crate::population::{Population, PopulationError};
use crate::scenario::Scenario;
use crate::strategy::{ActError, triggered};
use habits::Habits;

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
    /// What it has more than at the beginning, in florins: pay less debits.
    pub earned: f64,
    /// What its work cost it, in florins.
    pub cost: f64,
    /// Sum of its scores, in nats.
    pub score: f64,
    /// What it was paid in each round, less debits.
    pub by_round: Vec<f64>,
}

impl MemberOutcome {
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
    /// Members asked.
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
    /// Which member an account is of.
    owner: BTreeMap<Address, usize>,
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
        let (seats, owner) = seats(scenario, &population);
        let tokens = match &scenario.mechanism {
            Mechanism::Tokenised(rules) => {
                let all: Vec<Address> = seats.iter().map(|seat| seat.account).collect();
                Some(Tokens::new(rules.clone(), POOL, &all))
            }
            _ => None,
        };
        let holdout = Committed::new(population.holdout.clone());
        let (model, how) = (model_spec(&spec.model), training(&spec.training));
        let mechanism = scenario.mechanism.clone();
        let start = check_model(&spec, &base);
        let market = Market::open(spec, base, holdout, mechanism, &seats)?;
        let members = population.members.iter().map(|member| MemberOutcome {
            group: member.group,
            honest: member.strategy.is_honest(),
            rows: member.rows.rows(),
            rounds: 0,
            asked: 0,
            refused: 0,
            earned: 0.0,
            cost: 0.0,
            score: 0.0,
            by_round: Vec::new(),
        });
        let mut game = Self {
            scenario,
            seed,
            market,
            seats,
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
            report: None,
        };
        game.accuracy_before = game.accuracy(&start.unwrap_or_default())?;
        Ok(game)
    }

    /// Lets virtual time pass until a round opens; `false` where none will any more.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn opens(&mut self) -> Result<bool, SimError> {
        Ok(self.market.next_offer()?)
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
        let sent = self.tokens.is_some().then(|| arrivals.clone());
        let done = self.market.round(arrivals)?;
        if let Some(sent) = sent {
            self.pay_in_tokens(&base, &sent, &done)?;
        }
        self.note(&done);
        let row = row_of(&done.report, self.market.now().0, f64::NAN);
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
        let member = *self.owner.get(&account)?;
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

    /// A mechanism with tokens of its own settles the round beside the task.
    fn pay_in_tokens(
        &mut self,
        base: &[f32],
        sent: &[Arrival],
        done: &RoundDone,
    ) -> Result<(), SimError> {
        let Some(mut tokens) = self.tokens.take() else { return Ok(()) };
        if let Some(metrics) = &done.report.metrics {
            let accuracy = f64::from(metrics.correct_after) / f64::from(metrics.rows.max(1));
            let from_new = tokens.from_the_new_model();
            let scores = self.first_order(base, sent, done, from_new)?;
            let market = &self.market;
            let moves = tokens.settle(&RoundSeen { scores, accuracy }, |who| market.balance(who));
            for (from, to, amount) in moves {
                self.market.transfer(from, to, amount)?;
            }
        }
        self.tokens = Some(tokens);
        Ok(())
    }

    /// What each update takes off the loss to first order, in nats: `−pᵢ·⟨∇L, Δᵢ⟩` on the round's rows, at the model that
    /// the round began with and with the weights of the mean; or, as it was published, at the model after it, with equal
    /// weights, and each update counted from their mean, so that the sum is zero.
    fn first_order(
        &mut self,
        base: &[f32],
        sent: &[Arrival],
        done: &RoundDone,
        from_new: bool,
    ) -> Result<Vec<(Address, f64)>, SimError> {
        let report = &done.report;
        let rows: Vec<usize> = report.holdout.rows.iter().map(|row| *row as usize).collect();
        let judged = self.population.holdout.subset(&rows).map_err(ActError::from)?;
        let zero = vec![0.0; base.len()];
        let step = done.step.as_deref().filter(|_| from_new).unwrap_or(&zero);
        let at: Vec<f64> =
            base.iter().zip(step).map(|(base, step)| f64::from(*base) + f64::from(*step)).collect();
        let (_, gradient) = self.worker.gradient(&self.model, &at, &judged)?;
        let all: u64 = report.entries.iter().map(|entry| entry.rows_counted).sum();
        let count = report.entries.len().max(1) as f64;
        let score = |entry: &florin_protocol::Entry| {
            let sent = sent.iter().find(|arrival| arrival.account == entry.sender)?;
            let mut delta = sent.delta.clone();
            florin_work::clip_update(self.market.spec(), &mut delta);
            let along = delta.iter().zip(step).zip(&gradient);
            let along: f64 = along.map(|((d, s), g)| (f64::from(*d) - f64::from(*s)) * g).sum();
            let share = entry.rows_counted as f64 / all.max(1) as f64;
            let weight = if from_new { 1.0 / count } else { share };
            Some((entry.sender, -weight * along))
        };
        Ok(report.entries.iter().filter_map(score).collect())
    }

    /// Writes down what the round's report says of each member.
    fn note(&mut self, done: &RoundDone) {
        let report = &done.report;
        let mut pay = vec![0.0; self.members.len()];
        for line in &report.lines {
            let Some(at) = self.owner.get(&line.account) else { continue };
            pay[*at] += florins(line.payout) - florins(line.debit);
            self.members[*at].rounds += 1;
        }
        for score in report.valuation.iter().flat_map(|valuation| &valuation.scores) {
            let Some(at) = self.owner.get(&score.account) else { continue };
            let member = &mut self.members[*at];
            member.score += score.score_nano as f64 / 1e9;
            let refused = score.excluded || score.treatment.repeats.is_some();
            member.refused += u32::from(refused);
        }
        // Who was late sits out like who was silent, until it enrols again.
        for (who, _) in &report.missing {
            if let Some(at) = self.owner.get(who) {
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
            let Some(at) = self.owner.get(&seat.account) else { continue };
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
            balanced: self.market.is_balanced(),
        })
    }
}

/// An account for each identity, with what its rows take.
fn seats(scenario: &Scenario, population: &Population) -> (Vec<Seat>, BTreeMap<Address, usize>) {
    let (mut seats, mut owner) = (Vec::new(), BTreeMap::new());
    let terms = &scenario.task;
    let extra = match &scenario.mechanism {
        Mechanism::Tokenised(rules) => fln(rules.endowment as f64),
        _ => fln(0.0),
    };
    for member in &population.members {
        for identity in 0..member.strategy.identities() {
            let account = account(member.number, identity);
            let (_, covered) = member.strategy.rows(member.rows.rows() as u64, identity);
            let bond = fln((covered as f64 * terms.bond_per_row).max(terms.bond_min));
            seats.push(Seat { account, bond, extra });
            owner.insert(account, member.number);
        }
    }
    (seats, owner)
}

fn row_of(report: &Report, at_ms: u64, accuracy: f64) -> RoundOutcomeRow {
    let scores = || report.valuation.iter().flat_map(|valuation| &valuation.scores);
    let improvement = report.valuation.as_ref().map_or(0, |valuation| valuation.total_nano);
    let settled = report.outcome == RoundOutcome::Settled;
    RoundOutcomeRow {
        round: report.scope.round.0,
        at_ms,
        asked: report.entries.len() + report.missing.len(),
        updates: report.entries.len(),
        excluded: scores().filter(|score| score.excluded).count(),
        set_aside: scores().filter(|score| score.treatment.repeats.is_some()).count(),
        improvement: if settled { improvement as f64 / 1e9 } else { 0.0 },
        spent: report.lines.iter().map(|line| florins(line.payout)).sum(),
        accuracy,
    }
}
