//! The attacks of the benchmark, and the most that each may earn.

/// A market with an attacker, or with a buyer's settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attack {
    pub(super) name: &'static str,
    /// The attacker's group in a scenario; `None` without an attacker.
    pub(super) attacker: Option<&'static str>,
    /// The most that an attacker may earn, per honest member's pay.
    pub(super) pay_max: Option<f64>,
    /// The least that honest members must keep of their pay without the attack.
    pub(super) kept_min: Option<f64>,
    /// Fraction of wrong labels in the holdout.
    pub(super) holdout_label_noise: f64,
    /// Standard errors that are subtracted before pay.
    pub(super) confidence_z: f64,
    /// Holdout rows of a round, if they differ from the market's.
    pub(super) rows_per_round: Option<u32>,
    /// The part of an earlier task in this one; `None` if there was none.
    pub(super) earlier_task: Option<&'static str>,
}

const fn earns(name: &'static str, attacker: &'static str, pay_max: Option<f64>) -> Attack {
    Attack { name, attacker: Some(attacker), pay_max, ..NOBODY }
}

/// A copier of a task that ended before this one.
const fn copies_earlier_task(
    name: &'static str,
    earlier_task: &'static str,
    attacker: &'static str,
) -> Attack {
    Attack { earlier_task: Some(earlier_task), ..earns(name, attacker, Some(0.0)) }
}

const fn crowds_out(name: &'static str, attacker: &'static str, bars: Option<[f64; 2]>) -> Attack {
    let (pay_max, kept_min) = match bars {
        Some([pay, kept]) => (Some(pay), Some(kept)),
        None => (None, None),
    };
    Attack { name, attacker: Some(attacker), pay_max, kept_min, ..NOBODY }
}

/// No attack.
pub(super) const NOBODY: Attack = Attack {
    name: "no attack",
    attacker: None,
    pay_max: None,
    kept_min: None,
    holdout_label_noise: 0.0,
    confidence_z: 2.0,
    rows_per_round: None,
    earlier_task: None,
};

const EARLIER_UPDATE: &str =
    "count = 1\nstrategy = { kind = 'copy_earlier_task', copies = 'first_update' }";
const EARLIER_MODEL: &str =
    "count = 1\nstrategy = { kind = 'copy_earlier_task', copies = 'last_model' }";

/// The attacks of participants. Pay is that of each attacker on average, except where several
/// identities belong to one owner.
pub(super) const ATTACKS: [Attack; 22] = [
    earns("one more honest member", "count = 1", None),
    earns("noise", "count = 1\nstrategy = { kind = 'noise', scale = 1.0 }", Some(0.02)),
    earns(
        "four times noise, each",
        "count = 4\nstrategy = { kind = 'noise', scale = 1.0 }",
        Some(0.10),
    ),
    earns("40 % wrong labels", "count = 1\nlabel_noise = 0.4", Some(0.10)),
    earns("idle", "count = 1\nstrategy = { kind = 'zero_update' }", Some(0.0)),
    earns(
        "training on disclosed rows",
        "count = 1\nstrategy = { kind = 'train_on_disclosed' }",
        Some(0.6),
    ),
    earns("replay", "count = 1\nstrategy = { kind = 'replay', noise = 0.0 }", Some(0.5)),
    earns(
        "replay, noise 20 %",
        "count = 1\nstrategy = { kind = 'replay', noise = 0.2 }",
        Some(0.5),
    ),
    earns(
        "replay, noise 50 %",
        "count = 1\nstrategy = { kind = 'replay', noise = 0.5 }",
        Some(0.5),
    ),
    earns(
        "replay, noise 100 %",
        "count = 1\nstrategy = { kind = 'replay', noise = 1.0 }",
        Some(0.5),
    ),
    earns(
        "mean of two others' last updates",
        "count = 1\nstrategy = { kind = 'copy', noise = 0.0, mix = 'second_best' }",
        Some(0.6),
    ),
    earns(
        "own rows bonded four times",
        "count = 1\nstrategy = { kind = 'inflate_bond', factor = 4.0 }",
        Some(2.3),
    ),
    earns(
        "own rows by four identities",
        "count = 1\nstrategy = { kind = 'replicate', identities = 4, updates = 'rescaled' }",
        Some(2.3),
    ),
    crowds_out(
        "holdout, 10 times the rows",
        "count = 1\nstrategy = { kind = 'train_on_holdout', identities = 1, factor = 10.0 }",
        Some([3.0, 0.65]),
    ),
    crowds_out(
        "holdout, 100 times the rows",
        "count = 1\nstrategy = { kind = 'train_on_holdout', identities = 1, factor = 100.0 }",
        Some([3.0, 0.65]),
    ),
    crowds_out(
        "holdout, ten identities",
        "count = 1\nstrategy = { kind = 'train_on_holdout', identities = 10, factor = 10.0 }",
        None,
    ),
    earns(
        "harmful: negated update",
        "count = 1\nstrategy = { kind = 'sign_flip', factor = 1.0 }",
        Some(0.0),
    ),
    earns(
        "flipped labels",
        "count = 1\nstrategy = { kind = 'flip_labels', fraction = 1.0 }",
        Some(0.0),
    ),
    copies_earlier_task("update of an earlier task", "ignored", EARLIER_UPDATE),
    copies_earlier_task("model of an earlier task", "ignored", EARLIER_MODEL),
    copies_earlier_task("update of the task whose model is continued", "continued", EARLIER_UPDATE),
    copies_earlier_task("model of the task whose model is continued", "continued", EARLIER_MODEL),
];

/// The settings of buyers who mean to pay nothing, with the largest threshold of a small round.
/// Honest members must get the floor, and keep their bonds.
pub(super) const BUYERS: [Attack; 3] = [
    Attack { name: "holdout with wrong labels", holdout_label_noise: 0.9, ..NOBODY },
    Attack {
        name: "holdout with wrong labels, z = 3",
        holdout_label_noise: 0.9,
        confidence_z: 3.0,
        ..NOBODY
    },
    Attack {
        name: "two rows a round, z = 3",
        rows_per_round: Some(2),
        confidence_z: 3.0,
        ..NOBODY
    },
];
