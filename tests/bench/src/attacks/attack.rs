//! The updates that an attacker submits instead of its honest update.

use florin_learning::{Dataset, params};
use florin_protocol::Address;

use super::learn::Cohort;
use super::market::{Submission, rows_of};
use super::noise::Noise;

/// An attack on the payment rule. Unless noted otherwise, the attacker's bond does not change,
/// because identities are cheap but bonds are not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Attack {
    /// No attack: the baseline.
    Honest,
    /// This many identities submit the same update and share the bond.
    SybilSame(usize),
    /// This many identities share the rows and the bond, and train honestly.
    SybilDisjoint(usize),
    /// As above, but each trains longer, so that its update has the norm of an honest one.
    SybilDisjointLonger(usize),
    /// This many identities submit the same update with slight noise, and share the bond.
    SybilNoisy(usize),
    /// This many identities submit the same update, each with a full bond: the total bond is
    /// multiplied.
    Replicate(usize),
    /// As above, each with 20 % noise and another norm.
    ReplicateNoisy(usize),
    /// Declares three times its rows; the bond covers one third of them.
    InflateUncovered,
    /// Declares three times its rows and covers them all: the bond is multiplied.
    InflateCovered,
    /// Submits its update, multiplied by this factor.
    Scale(f64),
    /// Submits the public step of the previous round with this relative noise.
    Replay(f64),
    /// Submits the public step of two rounds ago.
    ReplayOlder,
    /// Submits the best peer's update, committed after it, with this relative noise.
    Plagiarise(f64),
    /// As above, mixed with 30 % of the previous public step instead of noise.
    PlagiariseMixed,
    /// Submits the best peer's update of the previous round, with this relative noise.
    Republish(f64),
    /// Submits the mean of the two best peers' updates of the previous round.
    RepublishMixed,
    /// Submits the best peer's update of two rounds ago.
    RepublishOlder,
    /// Submits its own update of the first round again.
    RepeatFirst,
    /// Two identities with half the bond each submit the honest update plus and minus a random
    /// direction of this relative length.
    Hedge(f64),
    /// Trains on wrong labels.
    FlipLabels,
    /// Submits noise with the norm of an honest update.
    Noise,
    /// Submits a zero update.
    Idle,
}

impl Attack {
    pub(super) fn name(self) -> String {
        match self {
            Self::Honest => "honest".to_owned(),
            Self::SybilSame(k) => format!("sybil, same update ×{k}"),
            Self::SybilDisjoint(k) => format!("sybil, disjoint shards ×{k}"),
            Self::SybilDisjointLonger(k) => format!("sybil, disjoint shards ×{k}, longer training"),
            Self::SybilNoisy(k) => format!("sybil, noisy scaled copies ×{k}"),
            Self::Replicate(k) => format!("replicate ×{k}, per unit of bond"),
            Self::ReplicateNoisy(k) => format!("replicate ×{k} with noise, per unit of bond"),
            Self::InflateUncovered => "inflate rows ×3, same bond".to_owned(),
            Self::InflateCovered => "inflate rows ×3 and bond, per unit of bond".to_owned(),
            Self::Scale(by) => format!("scale ×{by}"),
            Self::Replay(noise) => format!("replay, noise {:.0} %", noise * 100.0),
            Self::ReplayOlder => "replay of an older step".to_owned(),
            Self::Plagiarise(noise) => format!("plagiarise, noise {:.0} %", noise * 100.0),
            Self::PlagiariseMixed => "plagiarise, mixed with the last step".to_owned(),
            Self::Republish(noise) => {
                format!("a peer's update of the previous round, noise {:.0} %", noise * 100.0)
            }
            Self::RepublishMixed => "two peers' updates of the previous round, mixed".to_owned(),
            Self::RepublishOlder => "a peer's update of two rounds ago".to_owned(),
            Self::RepeatFirst => "its own update of the first round".to_owned(),
            Self::Hedge(by) => format!("hedge Δ±{by}·u"),
            Self::FlipLabels => "label flip".to_owned(),
            Self::Noise => "noise".to_owned(),
            Self::Idle => "idle".to_owned(),
        }
    }

    /// The attacker's bond, as a multiple of its honest bond.
    pub(super) fn stake(self) -> f64 {
        match self {
            Self::Replicate(k) | Self::ReplicateNoisy(k) => k as f64,
            Self::InflateCovered => 3.0,
            _ => 1.0,
        }
    }
}

/// The information that the attacker has in a round.
pub(super) struct AttackContext<'a> {
    pub(super) cohort: &'a Cohort,
    pub(super) base: &'a [f32],
    /// The honest update of each member.
    pub(super) honest: &'a [Vec<f32>],
    /// Public steps of earlier rounds, newest last.
    pub(super) steps: &'a [Vec<f32>],
    /// The honest updates of all members in earlier rounds, newest last.
    pub(super) sent: &'a [Vec<Vec<f32>>],
    pub(super) attacker: usize,
    pub(super) best: usize,
    pub(super) second: usize,
    pub(super) round: usize,
}

/// The account of an identity of a member; identity 0 is the member's own account.
pub(super) fn account(member: usize, identity: usize) -> Address {
    let mut bytes = [0; 20];
    (bytes[0], bytes[1]) = (member as u8 + 1, identity as u8);
    Address(bytes)
}

impl AttackContext<'_> {
    fn own(&self) -> &[f32] {
        &self.honest[self.attacker]
    }

    fn rows(&self) -> u64 {
        rows_of(&self.cohort.shards[self.attacker])
    }

    fn sent(&self, identity: usize, rows: u64, bonded: u64, delta: Vec<f32>) -> Submission {
        Submission { account: account(self.attacker, identity), rows, bonded, delta }
    }

    /// One identity with the honest rows and bond.
    fn alone(&self, delta: Vec<f32>) -> Vec<Submission> {
        vec![self.sent(0, self.rows(), self.rows(), delta)]
    }

    /// Identities that share the rows and the bond.
    fn shared(&self, deltas: Vec<Vec<f32>>) -> Vec<Submission> {
        let (rows, parts) = (self.rows(), deltas.len() as u64);
        let part = |i: u64| rows * (i + 1) / parts - rows * i / parts;
        let all = deltas.into_iter().enumerate();
        all.map(|(i, delta)| self.sent(i, part(i as u64), part(i as u64), delta)).collect()
    }

    /// The submissions of the attacker.
    pub(super) fn act(&self, attack: Attack, noise: &mut Noise) -> anyhow::Result<Vec<Submission>> {
        let rows = self.rows();
        let own = self.own().to_vec();
        let copies = |k: usize| vec![own.clone(); k];
        let step = |back: usize| match self.steps.len().checked_sub(back) {
            Some(at) => self.steps[at].clone(),
            None => vec![0.0; own.len()],
        };
        let sent = |back: usize, member: usize| match self.sent.len().checked_sub(back) {
            Some(at) => self.sent[at][member].clone(),
            None => vec![0.0; own.len()],
        };
        Ok(match attack {
            Attack::Honest => self.alone(own),
            Attack::SybilSame(k) => self.shared(copies(k)),
            Attack::SybilNoisy(k) => self.shared(noise.noisy_copies(&own, k)),
            Attack::SybilDisjoint(k) => self.shared(self.disjoint(k, 1)?),
            Attack::SybilDisjointLonger(k) => self.shared(self.disjoint(k, k as u32)?),
            Attack::Replicate(k) => self.multiplied(copies(k)),
            Attack::ReplicateNoisy(k) => self.multiplied(noise.noisy_copies(&own, k)),
            Attack::InflateUncovered => vec![self.sent(0, 3 * rows, rows, own)],
            Attack::InflateCovered => vec![self.sent(0, 3 * rows, 3 * rows, own)],
            Attack::Scale(by) => self.alone(scaled(&own, by)),
            Attack::Replay(share) => self.alone(noise.with_noise(&step(1), share)),
            Attack::ReplayOlder => self.alone(step(2)),
            Attack::Plagiarise(share) => {
                self.alone(noise.with_noise(&self.honest[self.best], share))
            }
            Attack::PlagiariseMixed => {
                let best = &self.honest[self.best];
                let by = 0.3 * params::norm(best) / params::norm(&step(1)).max(1e-12);
                self.alone(sum(best, &scaled(&step(1), by)))
            }
            Attack::Republish(share) => self.alone(noise.with_noise(&sent(1, self.best), share)),
            Attack::RepublishMixed => {
                self.alone(scaled(&sum(&sent(1, self.best), &sent(1, self.second)), 0.5))
            }
            Attack::RepublishOlder => self.alone(sent(2, self.best)),
            Attack::RepeatFirst => self.alone(match self.sent.first() {
                Some(first) => first[self.attacker].clone(),
                None => own,
            }),
            Attack::Hedge(by) => {
                let aside = noise.direction(own.len(), by * params::norm(&own));
                self.shared(vec![sum(&own, &aside), sum(&own, &scaled(&aside, -1.0))])
            }
            Attack::FlipLabels => self.alone(self.flipped()?),
            Attack::Noise => self.alone(noise.direction(own.len(), params::norm(&own))),
            Attack::Idle => self.alone(vec![0.0; own.len()]),
        })
    }

    fn multiplied(&self, deltas: Vec<Vec<f32>>) -> Vec<Submission> {
        let rows = self.rows();
        let all = deltas.into_iter().enumerate();
        all.map(|(i, delta)| self.sent(i, rows, rows, delta)).collect()
    }

    fn disjoint(&self, parts: usize, times: u32) -> anyhow::Result<Vec<Vec<f32>>> {
        let shard = &self.cohort.shards[self.attacker];
        let rows = shard.rows();
        let mut how = self.cohort.training.clone();
        how.epochs *= times;
        (0..parts)
            .map(|part| {
                let data = shard.slice(rows * part / parts..rows * (part + 1) / parts)?;
                let salt = 1_000_000 + self.round * 1_000 + part;
                self.cohort.train(self.base, &data, &how, salt as u64)
            })
            .collect()
    }

    fn flipped(&self) -> anyhow::Result<Vec<f32>> {
        let shard = &self.cohort.shards[self.attacker];
        let labels = shard.labels().iter().map(|label| 9 - label).collect();
        let data = Dataset::new(shard.features().to_vec(), labels, shard.width(), shard.classes())?;
        self.cohort.train(self.base, &data, &self.cohort.training, self.round as u64)
    }
}

pub(super) fn scaled(delta: &[f32], by: f64) -> Vec<f32> {
    delta.iter().map(|value| (f64::from(*value) * by) as f32).collect()
}

fn sum(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}
