//! The simulation of one seed of a quote.

use std::ops::ControlFlow;

use florin_contribution::to_nano;
use florin_learning::data::DatasetError;
use florin_learning::engine::TrainError;
use florin_learning::{
    Dataset, Evaluator, ModelSpec, PartitionScheme, Reference, Trainer, Training, mean, params,
    partition,
};
use florin_participant::required_bond;
use florin_protocol::{Address, Amount, Report, RoundOutcome, TaskSpec};
use florin_work::{CommittedHoldout, training};
use rand_chacha::ChaCha8Rng;

use super::plan::{QuotePlan, WRONG_LABELS_PERCENT};
use super::power::Standing;
use super::{QuoteError, signed, training_error};
use crate::error::{SimError, SurrogateError};
use crate::market::{
    Arrival, MarketError, NextRound, ParticipantAccount, SimulatedMarket, account,
};
use crate::mechanism::{Mechanism, RoundScorer};
use crate::population::mislabelled;
use crate::random::{random_direction, shuffle, stream, uniform, uniform_below};

/// Accuracies are stated in millionths.
const MILLION: u64 = 1_000_000;

/// Label skew of honest members in half of the simulations: the concentration of the Dirichlet
/// distribution.
const DIRICHLET_ALPHA: f64 = 0.5;
/// Smallest number of rows of an honest member.
const ROWS_MIN: usize = 10;

/// The division of rows among the honest members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LabelSkew {
    /// All have the same number of rows, drawn at random.
    Even,
    /// Numbers of rows and frequencies of labels differ.
    Uneven,
}

/// A member's part in the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberRole {
    Honest,
    WrongLabels,
    Noise,
}

/// A task that is simulated.
pub(super) struct QuoteTask<'a> {
    /// The task as it is simulated.
    pub(super) spec: TaskSpec,
    pub(super) base_model: &'a [u8],
    pub(super) holdout: &'a Dataset,
    pub(super) plan: QuotePlan,
    pub(super) model: ModelSpec,
    /// The seed of the task; simulation n has the seed `seed + n`.
    pub(super) seed: u64,
}

/// The outcome of one simulation.
pub(super) struct SeedOutcome {
    /// Pay minus debits of each member, in base units.
    pub(super) earned: Vec<(MemberRole, i128)>,
    pub(super) data_spent: Amount,
    /// Units of verified work of all rounds.
    pub(super) work_units: u64,
    pub(super) accuracy_before: u32,
    pub(super) accuracy: u32,
    /// Mean losses in nano-units.
    pub(super) loss_before: i64,
    pub(super) loss: i64,
    pub(super) void_rounds: u32,
    /// The honest members after each round.
    pub(super) standings: Vec<Standing>,
}

/// A member of the simulation.
struct SimulatedMember {
    role: MemberRole,
    account: Address,
    rows: Dataset,
}

/// The rows of one simulation.
struct DividedRows {
    members: Vec<SimulatedMember>,
    valuation: Dataset,
}

impl QuoteTask<'_> {
    /// Simulates the task once.
    pub(super) fn simulate(&self, number: u64) -> Result<SeedOutcome, QuoteError> {
        let seed = self.seed.wrapping_add(number);
        let skew = if number.is_multiple_of(2) { LabelSkew::Even } else { LabelSkew::Uneven };
        let DividedRows { members, valuation } = self.divide_rows(seed, skew)?;
        let seats: Vec<ParticipantAccount> = members
            .iter()
            .map(|member| ParticipantAccount {
                account: member.account,
                bond: required_bond(&self.spec, member.rows.rows() as u64, None),
                extra: Amount::ZERO,
                quote_ms: 0,
            })
            .collect();
        let mut market = self.open_market(seed, &valuation, &seats)?;
        let mut engine = Reference::new();
        let before = market.newest_model().map_err(SimError::from)?;
        let (accuracy_before, loss_before) = self.evaluate(&mut engine, &before, &valuation)?;
        let mut reports = Vec::new();
        while market.next_offer().map_err(SimError::from)? == NextRound::Open {
            let arrivals = self.arrivals(&mut engine, &market, &members, seed)?;
            reports.push(market.run_round(arrivals, 1).map_err(SimError::from)?.report);
        }
        if reports.is_empty() {
            return Err(SimError::from(MarketError::Missing("a round")).into());
        }
        let after = market.newest_model().map_err(SimError::from)?;
        let (accuracy, loss) = self.evaluate(&mut engine, &after, &valuation)?;
        market.finish_task(&seats).map_err(SimError::from)?;
        let earned = members.iter().zip(&seats).map(|(member, seat)| {
            let after = signed(market.total_balance(seat.account));
            (member.role, after.saturating_sub(signed(seat.initial_balance())))
        });
        Ok(SeedOutcome {
            earned: earned.collect(),
            accuracy_before,
            accuracy,
            loss_before,
            loss,
            ..self.round_totals(&reports, &members)
        })
    }

    fn open_market(
        &self,
        seed: u64,
        valuation: &Dataset,
        seats: &[ParticipantAccount],
    ) -> Result<SimulatedMarket, QuoteError> {
        let mut spec = self.spec.clone();
        spec.salt = seed >> 1;
        let needed = spec.holdout.rows as usize;
        let rows: Vec<usize> = (0..valuation.rows()).cycle().take(needed).collect();
        let holdout = valuation.subset(&rows).map_err(dataset_error)?;
        let scorer = RoundScorer {
            mechanism: Mechanism::Florin,
            excludes_harmful: true,
            stale_weights: None,
        };
        let base = self.base_model.to_vec();
        let holdout = CommittedHoldout::new(holdout);
        let market = SimulatedMarket::open(spec, base, holdout, scorer, seats);
        let graph = match &self.model {
            ModelSpec::Graph(graph) => Some((**graph).clone()),
            _ => None,
        };
        Ok(market.map_err(SimError::from)?.with_graph(graph))
    }

    /// Divides the holdout rows at random: among the members that train, and for the valuation.
    fn divide_rows(&self, seed: u64, skew: LabelSkew) -> Result<DividedRows, QuoteError> {
        let order = shuffled(self.holdout.rows(), seed);
        let (trained, valuation) = order.split_at(self.plan.trained_rows() as usize);
        let (first, others) = trained.split_at(self.plan.member_rows as usize);
        let first = self.holdout.subset(first).map_err(dataset_error)?;
        let others = self.holdout.subset(others).map_err(dataset_error)?;
        let how = match skew {
            LabelSkew::Even => PartitionScheme::Iid,
            LabelSkew::Uneven => PartitionScheme::Dirichlet { alpha: DIRICHLET_ALPHA },
        };
        let honest = self.plan.honest as usize;
        let parts = partition(&others, honest, &how, ROWS_MIN, seed >> 1)
            .map_err(|error| SimError::Population(error.into()))?;
        let mut members = vec![SimulatedMember {
            role: MemberRole::WrongLabels,
            account: account(0, 0),
            rows: self.with_wrong_labels(&first, seed)?,
        }];
        for (number, part) in (1..).zip(&parts) {
            let rows = others.subset(part).map_err(dataset_error)?;
            let account = account(number, 0);
            members.push(SimulatedMember { role: MemberRole::Honest, account, rows });
        }
        // Noise needs no rows: it declares those of an average member.
        members.push(SimulatedMember {
            role: MemberRole::Noise,
            account: account(honest + 1, 0),
            rows: first,
        });
        let valuation = self.holdout.subset(valuation).map_err(dataset_error)?;
        Ok(DividedRows { members, valuation })
    }

    /// Whether rows have classes, which predictions can hit.
    pub(super) fn has_classes(&self) -> bool {
        self.model.classes() > 1
    }

    fn with_wrong_labels(&self, rows: &Dataset, seed: u64) -> Result<Dataset, QuoteError> {
        let rng = &mut stream(seed, "quote labels", [0, 0]);
        let share = f64::from(WRONG_LABELS_PERCENT) / 100.0;
        let wrong = match &self.model {
            ModelSpec::Graph(graph) if !self.has_classes() => {
                with_wrong_targets(rows, graph.declaration().inputs, share, rng)
            }
            _ => mislabelled(rows, share, rng),
        };
        Ok(wrong.map_err(dataset_error)?)
    }

    /// The updates of all members in the open round. A member with wrong labels whose training
    /// diverges sends none.
    fn arrivals(
        &self,
        engine: &mut Reference,
        market: &SimulatedMarket,
        members: &[SimulatedMember],
        seed: u64,
    ) -> Result<Vec<Arrival>, QuoteError> {
        let base = market.base_model().map_err(SimError::from)?;
        let round = market.offer().ok_or(MarketError::Missing("an open round"));
        let round = round.map_err(SimError::from)?.scope.round;
        let how = training(&self.spec, round);
        let mut arrivals = Vec::new();
        // Noise is the last member: it has the norm of the longest update.
        let mut norm = 0.0_f64;
        for (number, member) in members.iter().enumerate() {
            let rng = &mut stream(seed, "quote training", [number as u64, round.0.into()]);
            let delta = match member.role {
                MemberRole::Noise => random_direction(rng, base.len(), norm),
                role => {
                    let salt = uniform_below(rng, u64::MAX);
                    match self.train(engine, &base, &member.rows, &how, salt) {
                        Err(TrainError::Diverged { .. }) if role != MemberRole::Honest => continue,
                        trained => trained.map_err(training_error)?,
                    }
                }
            };
            norm = norm.max(params::norm(&delta));
            arrivals.push(Arrival {
                account: member.account,
                rows: member.rows.rows() as u64,
                delta,
                commit_ms: 1,
                upload_ms: 1,
                base_model: None,
                begun: None,
            });
        }
        Ok(arrivals)
    }

    /// The totals of all rounds; earnings and accuracies are not in the reports.
    fn round_totals(&self, reports: &[Report], members: &[SimulatedMember]) -> SeedOutcome {
        let honest: Vec<Address> = members
            .iter()
            .filter(|member| member.role == MemberRole::Honest)
            .map(|member| member.account)
            .collect();
        let z = self.spec.budget.confidence_z;
        let units = reports.iter().flat_map(|report| &report.valuation).map(|valued| valued.units);
        let void = reports.iter().filter(|report| !matches!(report.outcome, RoundOutcome::Settled));
        SeedOutcome {
            earned: Vec::new(),
            data_spent: reports.last().map_or(Amount::ZERO, |report| report.data_total),
            work_units: units.fold(0, u64::saturating_add),
            accuracy_before: 0,
            accuracy: 0,
            loss_before: 0,
            loss: 0,
            void_rounds: u32::try_from(void.count()).unwrap_or(u32::MAX),
            standings: reports.iter().map(|report| Standing::new(report, &honest, z)).collect(),
        }
    }

    fn train(
        &self,
        engine: &mut Reference,
        base: &[f32],
        rows: &Dataset,
        how: &Training,
        salt: u64,
    ) -> Result<Vec<f32>, TrainError> {
        let go_on = &mut |_| ControlFlow::Continue(());
        let trained = engine.train(&self.model, base, rows, how, salt, go_on)?;
        Ok(trained.params.iter().zip(base).map(|(new, old)| new - old).collect())
    }

    /// Correct predictions per million, and the mean loss in nano-units.
    fn evaluate(
        &self,
        engine: &mut Reference,
        params: &[f32],
        rows: &Dataset,
    ) -> Result<(u32, i64), QuoteError> {
        let wide: Vec<f64> = params.iter().map(|value| f64::from(*value)).collect();
        let right = engine.correct_predictions(&self.model, &wide, rows).map_err(SimError::from)?;
        let millionths = right as u64 * MILLION / (rows.rows() as u64).max(1);
        let losses = engine.row_losses(&self.model, &wide, rows).map_err(SimError::from)?;
        let loss =
            to_nano(mean(&losses)).map_err(|error| SimError::from(SurrogateError::from(error)))?;
        Ok((u32::try_from(millionths).unwrap_or(u32::MAX), loss))
    }
}

/// The rows, of which a share has the targets of another row. Rows without targets, such as texts, have
/// their inputs in another order.
fn with_wrong_targets(
    rows: &Dataset,
    inputs: usize,
    share: f64,
    rng: &mut ChaCha8Rng,
) -> Result<Dataset, DatasetError> {
    let mut numbers = rows.features().to_vec();
    let width = rows.width();
    let wrong: Vec<usize> = (0..rows.rows()).filter(|_| uniform(rng) < share).collect();
    for (&row, other) in wrong.iter().zip(wrong.iter().cycle().skip(1)) {
        let own = &mut numbers[row * width..(row + 1) * width];
        match inputs < width {
            true => own[inputs..].copy_from_slice(&rows.row(*other)[inputs..]),
            false => shuffle(rng, own),
        }
    }
    Dataset::new(numbers, rows.labels().to_vec(), width, rows.classes())
}

/// The numbers below `count` in a random order (Fisher–Yates shuffle).
pub(super) fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    shuffle(&mut stream(seed, "quote rows", [0, 0]), &mut order);
    order
}

pub(super) fn dataset_error(error: florin_learning::data::DatasetError) -> SimError {
    SimError::Population(error.into())
}
