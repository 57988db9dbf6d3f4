//! The tokenised incentive mechanism after J. Han and others, *TIFF: Tokenized Incentive for
//! Federated Learning* (IEEE CLOUD 2022), in the form in which its successor's rules are known:
//! each participant is a consumer and a provider at once. In each round
//!
//! 1. every participant pays a price into the pool;
//! 2. the improvement of accuracy over the best so far decides which share of the pool returns to
//!    the payers (the *token reduction ratio*);
//! 3. the rest rewards ranks by contribution, then ranks by attendance;
//! 4. the remainder stays in the pool for the next round.
//!
//! The published form has defects that decide who gains. Each defect is a switch here, off by
//! default, so that its effect can be measured. Every payment is a transfer on the ledger between a
//! wallet and the pool's wallet.

use std::collections::BTreeMap;

use florin_protocol::apportionment::split_by_weight;
use florin_protocol::{Address, Amount};
use serde::{Deserialize, Serialize};

/// Base units per token.
const TOKEN: u128 = 1_000_000_000_000_000_000;
/// Maximum share of the pool for ranks by contribution.
const QUALITY_MILLIONTHS: u128 = 500_000;
const MILLION: u128 = 1_000_000;

/// Parameters and switches of the mechanism.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tokenised {
    /// Initial tokens of each account.
    pub endowment: u64,
    /// Price in tokens of taking part in a round.
    pub price: u64,
    /// Which defects of the published form to reproduce.
    pub defects: Defects,
}

impl Default for Tokenised {
    fn default() -> Self {
        Self { endowment: 100, price: 1, defects: Defects::default() }
    }
}

/// Defects of the published form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defects {
    /// One participant pays the price for all of them.
    pub one_pays_for_all: bool,
    /// When accuracy does not rise, the best so far is reset, so that the next rise counts again.
    pub best_is_forgotten: bool,
    /// Pay depends on the rank alone, not on the contribution: two equal contributions get
    /// different ranks.
    pub places_ignore_size: bool,
    /// Attendance also pays accounts that never took part, and pays them first while the model
    /// stalls.
    pub idlers_attend: bool,
    /// Contributions are measured at the new model with equal weights, so that they sum to zero.
    pub zero_sum_scores: bool,
    /// Payments are rounded down to whole tokens, and the remainder stays in the pool.
    pub whole_tokens: bool,
}

/// Payments from one wallet to another.
pub type TokenTransfers = Vec<(Address, Address, Amount)>;

/// State of the mechanism between rounds.
#[derive(Clone, Debug)]
pub struct TokenMechanism {
    rules: Tokenised,
    /// The address of the pool's wallet.
    pool_account: Address,
    pool: u128,
    best: f64,
    rising: bool,
    attendance: BTreeMap<Address, u64>,
}

/// The mechanism's input from a round.
#[derive(Clone, Debug)]
pub struct TokenRoundInput {
    /// The participants of the round with their contributions.
    pub scores: Vec<(Address, f64)>,
    /// Accuracy of the new model on the round's holdout rows.
    pub accuracy: f64,
}

impl TokenMechanism {
    /// The state before the first round. `accounts` lists those that may take part.
    #[must_use]
    pub fn new(rules: Tokenised, pool_account: Address, accounts: &[Address]) -> Self {
        let attendance = accounts.iter().map(|who| (*who, 0)).collect();
        Self { rules, pool_account, pool: 0, best: 0.0, rising: true, attendance }
    }

    /// The initial tokens of each account.
    #[must_use]
    pub fn endowment(&self) -> Amount {
        Amount::from_units(u128::from(self.rules.endowment) * TOKEN)
    }

    /// Whether contributions are measured at the new model.
    #[must_use]
    pub const fn scores_at_new_model(&self) -> bool {
        self.rules.defects.zero_sum_scores
    }

    /// Settles a round; `balance` returns the balance of a wallet before the round. A participant
    /// that cannot pay the price takes part without paying and receives nothing.
    pub fn settle(
        &mut self,
        seen: &TokenRoundInput,
        balance: impl Fn(Address) -> Amount,
    ) -> TokenTransfers {
        let mut moves = TokenTransfers::new();
        let price = u128::from(self.rules.price) * TOKEN;
        let payers = self.collect(seen, price, &balance, &mut moves);
        let improvement = self.improvement(seen.accuracy);
        for who in &payers {
            *self.attendance.entry(*who).or_default() += 1;
        }
        self.refund_price(&payers, improvement, &mut moves);
        let quality = self.pool * QUALITY_MILLIONTHS / MILLION;
        let places = self.contribution_weights(seen, &payers);
        self.distribute(quality, &places, &mut moves);
        let attendance = self.attendance_weights(&payers);
        self.distribute(self.pool, &attendance, &mut moves);
        moves
    }

    /// Collects the price from every participant that can pay it. Returns the payers.
    fn collect(
        &mut self,
        seen: &TokenRoundInput,
        price: u128,
        balance: &impl Fn(Address) -> Amount,
        moves: &mut TokenTransfers,
    ) -> Vec<Address> {
        let there: Vec<Address> = seen.scores.iter().map(|(who, _)| *who).collect();
        if self.rules.defects.one_pays_for_all {
            let all = price.saturating_mul(there.len() as u128);
            let Some(last) = there.last() else { return there };
            let paid = all.min(balance(*last).units());
            self.charge(*last, paid, moves);
            return there;
        }
        let payers: Vec<Address> =
            there.into_iter().filter(|who| balance(*who).units() >= price).collect();
        for who in &payers {
            self.charge(*who, price, moves);
        }
        payers
    }

    fn charge(&mut self, from: Address, units: u128, moves: &mut TokenTransfers) {
        if units > 0 {
            moves.push((from, self.pool_account, Amount::from_units(units)));
            self.pool += units;
        }
    }

    /// Relative rise of accuracy above the best so far, clamped to the range from 0 to 1.
    fn improvement(&mut self, accuracy: f64) -> f64 {
        let improvement = match self.best {
            best if best <= 0.0 => f64::from(u8::from(accuracy > 0.0)),
            best => ((accuracy - best) / best).clamp(0.0, 1.0),
        };
        self.rising = improvement > 0.0;
        self.best = match self.rising {
            true => accuracy,
            false if self.rules.defects.best_is_forgotten => 0.0,
            false => self.best,
        };
        improvement
    }

    /// Returns part of the price to the payers: the smaller the improvement, the larger the part.
    fn refund_price(&mut self, payers: &[Address], improvement: f64, moves: &mut TokenTransfers) {
        let ratio = ((1.0 - improvement) * 1e6).floor().clamp(0.0, 1e6) as u128;
        let back = self.pool * ratio / MILLION;
        let equal: Vec<(Address, u128)> = payers.iter().map(|who| (*who, 1)).collect();
        self.distribute(back, &equal, moves);
    }

    /// Weights for the reward for contribution.
    fn contribution_weights(
        &self,
        seen: &TokenRoundInput,
        payers: &[Address],
    ) -> Vec<(Address, u128)> {
        let mut ranked: Vec<(Address, f64)> =
            seen.scores.iter().filter(|(who, _)| payers.contains(who)).copied().collect();
        if !self.rules.defects.places_ignore_size {
            let size = |score: f64| (score.max(0.0) * 1e12) as u128;
            return ranked.into_iter().map(|(who, score)| (who, size(score))).collect();
        }
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let count = ranked.len() as u128;
        ranked.into_iter().zip(0..).map(|((who, _), place)| (who, count - place)).collect()
    }

    /// Weights for the reward for attendance.
    fn attendance_weights(&self, payers: &[Address]) -> Vec<(Address, u128)> {
        let mut ranked: Vec<(Address, u64)> =
            self.attendance.iter().map(|(w, n)| (*w, *n)).collect();
        if !self.rules.defects.idlers_attend {
            ranked.retain(|(who, _)| payers.contains(who));
            return ranked.into_iter().map(|(who, times)| (who, u128::from(times))).collect();
        }
        match self.rising {
            true => ranked.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0))),
            false => ranked.sort_by(|a, b| a.1.cmp(&b.1).then(a.0.cmp(&b.0))),
        }
        let count = ranked.len() as u128;
        ranked.into_iter().zip(0..).map(|((who, _), place)| (who, count - place)).collect()
    }

    /// Divides `units` of the pool in proportion to `weights`, exactly or rounded down to whole
    /// tokens.
    fn distribute(&mut self, units: u128, weights: &[(Address, u128)], moves: &mut TokenTransfers) {
        let only: Vec<u128> = weights.iter().map(|(_, weight)| *weight).collect();
        let Ok(parts) = split_by_weight(Amount::from_units(units), &only) else {
            // All weights are zero: the tokens stay in the pool.
            return;
        };
        for ((who, _), part) in weights.iter().zip(parts) {
            let part = match self.rules.defects.whole_tokens {
                true => part.units() / TOKEN * TOKEN,
                false => part.units(),
            };
            if part > 0 {
                moves.push((self.pool_account, *who, Amount::from_units(part)));
                self.pool -= part;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(n: u8) -> Address {
        Address([n; 20])
    }

    /// Simulates rounds with five participants and a sixth account that never takes part; returns
    /// the balances in tokens.
    fn play(defects: Defects, rounds: &[(f64, &[f64])]) -> Vec<f64> {
        let accounts: Vec<Address> = (1..=6).map(who).collect();
        let rules = Tokenised { defects, ..Tokenised::default() };
        let mut tokens = TokenMechanism::new(rules, who(9), &accounts);
        let mut held: BTreeMap<Address, u128> =
            accounts.iter().map(|who| (*who, tokens.endowment().units())).collect();
        for (accuracy, scores) in rounds {
            let scores: Vec<(Address, f64)> = (1..).map(who).zip(scores.iter().copied()).collect();
            let seen = TokenRoundInput { scores, accuracy: *accuracy };
            let before = held.clone();
            let balance = |who| Amount::from_units(before.get(&who).copied().unwrap_or(0));
            for (from, to, amount) in tokens.settle(&seen, balance) {
                *held.entry(from).or_default() -= amount.units();
                *held.entry(to).or_default() += amount.units();
            }
            assert_eq!(held.values().sum::<u128>(), 600 * TOKEN, "tokens are conserved");
            assert_eq!(held.get(&who(9)).copied().unwrap_or(0), tokens.pool);
        }
        accounts.iter().map(|who| held[who] as f64 / TOKEN as f64).collect()
    }

    const RISING: &[(f64, &[f64])] = &[
        (0.2, &[4.0, 3.0, 2.0, 1.0, 0.0]),
        (0.4, &[4.0, 3.0, 2.0, 1.0, 0.0]),
        (0.8, &[4.0, 3.0, 2.0, 1.0, 0.0]),
    ];
    const STALLED: &[(f64, &[f64])] = &[
        (0.5, &[1.0, 1.0, 1.0, 1.0, 1.0]),
        (0.5, &[1.0, 1.0, 1.0, 1.0, 1.0]),
        (0.5, &[1.0, 1.0, 1.0, 1.0, 1.0]),
    ];

    #[test]
    fn a_higher_contribution_earns_more_and_an_absent_account_keeps_its_balance() {
        let held = play(Defects::default(), RISING);
        assert!(held[0] > held[1] && held[1] > held[2] && held[2] > held[3] && held[3] > held[4]);
        assert_eq!(held[5], 100.0);
    }

    #[test]
    fn a_round_without_improvement_refunds_the_price() {
        let held = play(Defects::default(), STALLED);
        assert!(held.iter().all(|tokens| (tokens - 100.0).abs() < 1e-9), "{held:?}");
    }

    #[test]
    fn each_defect_changes_the_payments() {
        let one = play(Defects { one_pays_for_all: true, ..Defects::default() }, RISING);
        assert!(one[4] < 90.0, "the last participant pays for all: {one:?}");
        let idle = play(Defects { idlers_attend: true, ..Defects::default() }, RISING);
        assert!(idle[5] > 100.0, "an idle account is paid: {idle:?}");
        let size = Defects { places_ignore_size: true, ..Defects::default() };
        let equal: &[(f64, &[f64])] = &[(0.2, &[1.0; 5]), (0.4, &[1.0; 5]), (0.8, &[1.0; 5])];
        assert_eq!(play(Defects::default(), equal)[0], play(Defects::default(), equal)[4]);
        let places = play(size, equal);
        assert!(places[0] > places[4], "equal work, different ranks: {places:?}");
        let whole = play(Defects { whole_tokens: true, ..Defects::default() }, RISING);
        assert!(whole.iter().all(|tokens| tokens.fract() == 0.0), "{whole:?}");
        assert_ne!(whole, play(Defects::default(), RISING));
        // Accuracy falls and then recovers partly: only with the reset does the recovery count as
        // an improvement.
        let scores: &[f64] = &[4.0, 3.0, 2.0, 1.0, 0.0];
        let falling: &[(f64, &[f64])] = &[(0.5, scores), (0.1, scores), (0.3, scores)];
        let forgotten = Defects { best_is_forgotten: true, ..Defects::default() };
        assert_ne!(play(Defects::default(), falling), play(forgotten, falling));
    }
}
