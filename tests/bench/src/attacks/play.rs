//! Runs a whole task, honestly or under attack, and returns the earnings of its members.

use florin_protocol::{PreprocessingRules, UpdateScore};

use super::attack::{Attack, AttackContext, account};
use super::learn::{Cohort, Setting};
use super::market::{InMemoryMarket, PayLimit, ROUNDS, Submission, rows_of};
use super::noise::Noise;

/// The earnings in one task.
#[derive(Debug, Clone)]
pub(super) struct Earnings {
    /// By member, in florins; the attacker's identities are summed up.
    pub(super) by_member: Vec<f64>,
    /// By member, in round pools, if each pool were split by the positive parts of the scores,
    /// without deductions.
    pub(super) cut_at_zero: Vec<f64>,
    /// Number of honest updates that were rejected as near-duplicates.
    pub(super) collisions: usize,
}

/// The attacker, and the members whose updates it copies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Roles {
    pub(super) attacker: usize,
    pub(super) best: usize,
    pub(super) second: usize,
}

impl Roles {
    /// The attacker is the median contributor of the honest task; it copies the best contributor.
    pub(super) fn from_earnings(earned: &[f64]) -> Self {
        let mut order: Vec<usize> = (0..earned.len()).collect();
        order.sort_by(|&a, &b| earned[a].total_cmp(&earned[b]).then(a.cmp(&b)));
        Self {
            attacker: order[order.len() / 2],
            best: order[order.len() - 1],
            second: order[order.len() - 2],
        }
    }
}

/// A transformation of updates before submission, for protections that are compared but not built
/// in.
pub(super) type UpdateTransform = fn(&mut [f32], step: Option<&Vec<f32>>);

/// Runs all rounds of a task.
pub(super) fn play(
    setting: &Setting,
    (protection, purse): (PreprocessingRules, PayLimit),
    attack: Attack,
    roles: Roles,
    before: UpdateTransform,
) -> anyhow::Result<Earnings> {
    let cohort = Cohort::new(setting)?;
    let mut market = InMemoryMarket::new(&cohort, protection, purse);
    let mut noise = Noise::new(setting.seed);
    let mut steps: Vec<Vec<f32>> = Vec::new();
    let mut earlier: Vec<Vec<Vec<f32>>> = Vec::new();
    let (mut cut_at_zero, mut collisions) = (vec![0.0; setting.members], 0);
    for round in 0..ROUNDS {
        let base = market.base()?;
        let honest = (0..setting.members)
            .map(|member| cohort.honest(&base, member, round))
            .collect::<Result<Vec<_>, _>>()?;
        let Roles { attacker, best, second } = roles;
        let scene = AttackContext {
            cohort: &cohort,
            base: &base,
            honest: &honest,
            steps: &steps,
            sent: &earlier,
            attacker,
            best,
            second,
            round,
        };
        let mut sent: Vec<Submission> = (0..setting.members)
            .filter(|&member| member != attacker || attack == Attack::Honest)
            .map(|member| {
                let rows = rows_of(&cohort.shards[member]);
                let delta = honest[member].clone();
                Submission { account: account(member, 0), rows, bonded: rows, delta }
            })
            .collect();
        if attack != Attack::Honest {
            sent.extend(scene.act(attack, &mut noise)?);
        }
        for sent in &mut sent {
            before(&mut sent.delta, steps.last());
        }
        let scores = market.play(&sent)?;
        add_shares_of_positive(&scores, &mut cut_at_zero);
        collisions += scores
            .iter()
            .filter(|score| attack == Attack::Honest || member_of(score) != attacker)
            .filter(|score| score.preprocessing.duplicate_of.is_some())
            .count();
        let after = market.base()?;
        earlier.push(honest);
        steps.push(after.iter().zip(&base).map(|(after, base)| after - base).collect());
    }
    let identities = |member: usize| (0..16).map(move |identity| account(member, identity));
    let by_member = (0..setting.members)
        .map(|member| identities(member).map(|account| market.earned(account)).sum())
        .collect();
    Ok(Earnings { by_member, cut_at_zero, collisions })
}

fn member_of(score: &UpdateScore) -> usize {
    usize::from(score.account.0[0]) - 1
}

fn add_shares_of_positive(scores: &[UpdateScore], by_member: &mut [f64]) {
    let positive = |score: &UpdateScore| score.score_nano.max(0) as f64;
    let all: f64 = scores.iter().map(positive).sum();
    for score in scores.iter().filter(|_| all > 0.0) {
        by_member[member_of(score)] += positive(score) / all;
    }
}
